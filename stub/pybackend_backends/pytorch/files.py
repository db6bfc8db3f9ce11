"""Finds the files of a model in its version directory, loads them, and completes a configuration from what they say."""

import os
import warnings
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from pybackend_backends.pytorch import archive
from pybackend_backends.pytorch.arguments import Results, match_inputs
from pybackend_backends.pytorch.exported import (
    Description,
    ExportedProgram,
    described_result,
    load_compiled,
    load_exported,
    tensor_info,
)
from pybackend_backends.pytorch.programs import LoadedProgram, load_class, load_torchscript
from pybackend_backends.pytorch.settings import ProgramSettings
from pybackend_sdk.backend import Signature, TensorInfo, complete_config, model_path, model_tensors
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig

_SCRIPT, _EXPORT, _CODE = "model.pt", "model.pt2", "model.py"

CLASS = "class"


class SavedModel(NamedTuple):
    """The files of one model: an archive of a kind of :mod:`archive`, or CLASS: Python code, with or without a state dict."""

    kind: str
    path: str
    weights: str = ""


def find_files(config: Mapping[str, Any]) -> SavedModel:
    """Find a model's files: the configured one, else ``model.pt``, ``model.pt2`` or ``model.py``.

    A state dict belongs to the code that has the same name and ends in ``.py``.
    """
    archives = [_EXPORT, _SCRIPT] if config.get("platform") == "torch_aoti" else [_SCRIPT, _EXPORT]
    path = model_path(config, [*archives, _CODE])
    stem, ending = os.path.splitext(path)
    if ending == ".py":
        weights = stem + ".pt"
        return SavedModel(CLASS, path, weights if os.path.isfile(weights) else "")
    kind = archive.kind_of(path)
    if kind != archive.WEIGHTS:
        return SavedModel(kind, path)
    code = stem + ".py"
    if not os.path.isfile(code):
        raise TritonModelException(
            f"model '{config['name']}': {path} has weights only (torch.save), and there is no {os.path.basename(code)} "
            "beside it with the class that they belong to. Put it there, or save the whole model with torch.export.save "
            "or torch.jit.save"
        )
    return SavedModel(CLASS, code, path)


def load(config: Mapping[str, Any], files: SavedModel, device: str, settings: ProgramSettings) -> LoadedProgram:
    """Load a model for a device such as ``cpu``; empty to follow the file."""
    if files.kind in {archive.TORCHSCRIPT, archive.COMPILED} and settings.compile_options is not None:
        raise TritonModelException(
            f"model '{config['name']}': torch.compile takes Python modules and archives of torch.export, and {files.path} "
            f"is of {files.kind}: remove the parameters TORCH_COMPILE and TORCH_COMPILE_OPTIONAL_PARAMETERS"
        )
    if files.kind == archive.TORCHSCRIPT:
        return load_torchscript(files.path, device, settings.share_weights)
    if files.kind == archive.EXPORTED:
        return load_exported(files.path, device, settings.compile_options)
    if files.kind == archive.COMPILED:
        return load_compiled(files.path)
    return load_class(files.path, files.weights, device, settings.class_name, settings.compile_options)


def complete(config: ModelConfig, files: SavedModel, program: LoadedProgram) -> ModelConfig:
    """Fill in the tensors and the batching that a file tells.

    Archives of ``torch.export`` describe their tensors. Files of ``torch.jit.trace`` have the shapes that they were
    traced with, and a trial run tells the rest. Other files tell nothing but the names of arguments.
    """
    document = config.as_dict()
    if isinstance(program, ExportedProgram):
        return complete_config(config, signature_for(document, program, program.description), files.path)
    if document.get("input") and document.get("output"):
        return config
    description = _tried(document, files, program)
    return complete_config(config, signature_for(document, program, description), files.path)


def _tried(config: Mapping[str, Any], files: SavedModel, program: LoadedProgram) -> Description:
    examples = traced_examples(files.path) if files.kind == archive.TORCHSCRIPT else None
    if examples is None or program.takes_dictionary:
        listed = ", ".join(argument.name for argument in program.arguments)
        raise TritonModelException(
            f"model '{config['name']}': {os.path.basename(files.path)} does not say the types and shapes of its tensors, only "
            f"the arguments of forward ({listed}): write its inputs and outputs into config.pbtxt (pybackend import takes one "
            "by --config FILE), or save the model with torch.export.save as model.pt2"
        )
    try:
        return try_out(program, examples)
    except RuntimeError as error:
        raise TritonModelException(
            f"model '{config['name']}': {os.path.basename(files.path)} does not say its outputs, and a trial run with the "
            f"shapes that it was traced with failed: {archive.beginning_of(error)} Write inputs and outputs into "
            "config.pbtxt"
        ) from None


def bind_inputs(config: Mapping[str, Any], program: LoadedProgram) -> Dict[str, str]:
    """The argument's name for the name of each input: those of the configuration come first."""
    names = [tensor["name"] for tensor in model_tensors(config, "input")]
    if program.takes_dictionary:
        return {name: name for name in names}
    return match_inputs(config["name"], program.arguments, names)


def signature_for(config: Mapping[str, Any], program: LoadedProgram, description: Description) -> Signature:
    """A description with the names that the configuration uses, and those of the file for tensors that it leaves out."""
    inputs: List[TensorInfo] = list(description.inputs)
    if config.get("input"):
        given = {tensor.name: tensor for tensor in inputs}
        inputs = [given[argument]._replace(name=name) for name, argument in bind_inputs(config, program).items()]
    return Signature(inputs, _outputs_for(config, description), description.most_rows)


def _outputs_for(config: Mapping[str, Any], description: Description) -> Sequence[TensorInfo]:
    names = [tensor["name"] for tensor in model_tensors(config, "output")]
    stated = description.outputs
    if not names:
        return list(stated.values()) if isinstance(stated, dict) else stated
    return [tensor._replace(name=name) for name, tensor in zip(names, Results(names).pick(stated))]


Shape = Tuple[int, ...]


class Example(NamedTuple):
    """A tensor of an example call: its argument, torch's dtype, and its shape with the first dimension."""

    name: str
    dtype: Any
    shape: Shape


def traced_examples(path: str) -> "Optional[List[Example]]":
    """The example inputs that ``torch.jit.trace`` has left in a file; None for a scripted module."""
    if not archive.has_examples(path):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(path, map_location="cpu", _restore_shapes=True)
    examples = []
    for value in list(module.graph.inputs())[1:]:
        kind = value.type()
        sizes, dtype = (kind.sizes(), kind.dtype()) if kind.kind() == "TensorType" else (None, None)
        if sizes is None or dtype is None:
            return None
        examples.append(Example(value.debugName().partition(".")[0], dtype, tuple(sizes)))
    return examples


def try_out(program: LoadedProgram, examples: Sequence[Example]) -> Description:
    """Run a program on random numbers in the shape of its example.

    A RuntimeError says that it does not run on such inputs.

    Rows are separate if the answer to some rows is the same, up to rounding, whichever rows are beside them. Then the
    first dimension of everything is -1.
    """
    names = [argument.name for argument in program.arguments]
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = [_filled(example) for example in examples]
        result = program.call(dict(zip(names, inputs)))
        separate = _treats_rows_separately(program, names, inputs, _flat(result))
    given = [tensor_info(name, value) for name, value in zip(names, inputs)]
    returned = described_result(result)
    if not separate:
        return Description(given, returned, 0)
    if isinstance(returned, dict):
        return Description(_of_any_rows(given), dict(zip(returned, _of_any_rows(list(returned.values())))), None)
    return Description(_of_any_rows(given), _of_any_rows(returned), None)


def _filled(example: Example) -> Any:
    if example.dtype.is_floating_point:
        return torch.randn(example.shape).to(example.dtype)
    return torch.zeros(example.shape, dtype=example.dtype)  # an index that is valid whatever it counts


def _flat(result: Any) -> List[Any]:
    if isinstance(result, dict):
        return list(result.values())
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _treats_rows_separately(
    program: LoadedProgram, names: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any]
) -> bool:
    if not inputs or any(value.dim() == 0 or len(value) != len(inputs[0]) for value in inputs):
        return False
    more = [torch.cat([value, _filled_like(value), _filled_like(value)]) for value in inputs]
    try:
        together = _flat(program.call(dict(zip(names, more))))
    except (RuntimeError, IndexError, ValueError):
        return False
    return all(_begins_with(many, few, len(inputs[0])) for many, few in zip(together, outputs))


def _begins_with(many: Any, few: Any, rows: int) -> bool:
    """Whether a result for three times the rows begins with the result for the rows."""
    if not isinstance(few, torch.Tensor) or few.dim() == 0 or few.shape[0] != rows:
        return False
    if many.shape != (3 * rows, *few.shape[1:]):
        return False
    return bool(torch.allclose(many[:rows].double(), few.double(), rtol=1e-3, atol=1e-4, equal_nan=True))


def _filled_like(value: Any) -> Any:
    return torch.randn(value.shape).to(value.dtype) if value.is_floating_point() else torch.zeros_like(value)


def _of_any_rows(tensors: Sequence[TensorInfo]) -> List[TensorInfo]:
    return [tensor._replace(shape=(-1, *(tensor.shape or (0,))[1:])) for tensor in tensors]
