"""Completes a configuration from what a model's file says, or from a trial run."""

import os
from typing import Any, Dict, List, Mapping, Sequence

from pybackend_backends.pytorch import archive
from pybackend_backends.pytorch.arguments import Results, match_inputs
from pybackend_backends.pytorch.exported import Description, ExportedProgram
from pybackend_backends.pytorch.files import ModelFiles
from pybackend_backends.pytorch.programs import Program
from pybackend_backends.pytorch.trial import traced_examples, try_out
from pybackend_sdk.backend import Signature, TensorInfo, complete_config
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig


def complete(config: ModelConfig, files: ModelFiles, program: Program) -> ModelConfig:
    """Fill in the tensors and the batching that a file tells.

    Archives of ``torch.export`` describe their tensors. Files of ``torch.jit.trace`` have the shapes that they were
    traced with, and a trial run tells the rest. Other files tell nothing but the names of arguments.

    Raises:
        TritonModelException: the configuration contradicts the file, or leaves out what nothing tells.
    """
    document = config.as_dict()
    if isinstance(program, ExportedProgram):
        return complete_config(config, signature_for(document, program, program.description), files.path)
    if document.get("input") and document.get("output"):
        return config
    description = _tried(document, files, program)
    return complete_config(config, signature_for(document, program, description), files.path)


def _tried(config: Mapping[str, Any], files: ModelFiles, program: Program) -> Description:
    examples = traced_examples(files.path) if files.kind == archive.TORCHSCRIPT else None
    if examples is None or program.takes_dictionary:
        listed = ", ".join(argument.name for argument in program.arguments)
        raise TritonModelException(
            f"model '{config['name']}': {os.path.basename(files.path)} does not say the types and shapes of its tensors, only "
            f"the arguments of forward ({listed}): write its inputs and outputs into config.pbtxt, or save the model with "
            "torch.export.save as model.pt2"
        )
    try:
        return try_out(program, examples)
    except RuntimeError as error:
        raise TritonModelException(
            f"model '{config['name']}': {os.path.basename(files.path)} does not say its outputs, and a trial run with the "
            f"shapes that it was traced with failed: {archive.beginning_of(error)} Write inputs and outputs into "
            "config.pbtxt"
        ) from None


def bind_inputs(config: Mapping[str, Any], program: Program) -> Dict[str, str]:
    """The argument's name for the name of each configured input.

    Raises:
        TritonModelException: they do not fit.
    """
    names = [tensor["name"] for tensor in config["input"]]
    if program.takes_dictionary:
        return {name: name for name in names}
    return match_inputs(config["name"], program.arguments, names)


def signature_for(config: Mapping[str, Any], program: Program, description: Description) -> Signature:
    """A description with the names that the configuration uses, and those of the file for tensors that it leaves out.

    Raises:
        TritonModelException: the configuration has other tensors.
    """
    inputs: List[TensorInfo] = list(description.inputs)
    if config.get("input"):
        given = {tensor.name: tensor for tensor in inputs}
        inputs = [given[argument]._replace(name=name) for name, argument in bind_inputs(config, program).items()]
    return Signature(inputs, _outputs_for(config, description), description.most_rows)


def _outputs_for(config: Mapping[str, Any], description: Description) -> Sequence[TensorInfo]:
    names = [tensor["name"] for tensor in config.get("output") or ()]
    stated = description.outputs
    if not names:
        return list(stated.values()) if isinstance(stated, dict) else stated
    return [tensor._replace(name=name) for name, tensor in zip(names, Results(names).pick(stated))]
