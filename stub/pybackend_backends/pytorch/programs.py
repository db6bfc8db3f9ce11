"""Models as functions of named values: TorchScript, archives of ``torch.export``, and Python classes with weights."""

import importlib.util
import inspect
import os
import sys
import warnings
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Sequence, Set

import numpy as np
import torch

from pybackend_backends.pytorch import archive
from pybackend_backends.pytorch.arguments import Argument, Results
from pybackend_backends.pytorch.tensors import datatype_of
from pybackend_sdk.error import TritonModelException

CLASS_MODULE = "pytorch_model_class"


class LoadedProgram:
    """A loaded model: a function of named values.

    ``arguments`` are in the order of ``forward``. If it takes a dictionary, ``forward`` has one argument, a dictionary
    of tensors with any keys.
    """

    def __init__(
        self, call: Callable[[Mapping[str, Any]], Any], arguments: Sequence[Argument], takes_dictionary: bool = False
    ) -> None:
        self.call = call
        self.arguments = list(arguments)
        self.takes_dictionary = takes_dictionary


def load_torchscript(path: str, device: str, share_weights: bool = True) -> LoadedProgram:
    """Load what ``torch.jit.save`` wrote, for a device such as ``cpu``, or for the devices that the file names if that is empty.

    Large weights are shared, mapped from the file, on the CPU only.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated, and still served
            module = torch.jit.load(path, map_location=device or None)
    except RuntimeError as error:
        raise TritonModelException(f"{path} cannot be loaded as TorchScript: {archive.beginning_of(error)}") from None
    module.eval()
    if share_weights and device == "cpu":
        map_weights(module, path)
    schema = module.forward.schema.arguments[1:]
    dictionaries = [argument for argument in schema if argument.type.kind() == "DictType"]
    if len(dictionaries) == 1 and len(schema) == 1:
        return LoadedProgram(lambda values: module(dict(values)), [Argument(schema[0].name)], takes_dictionary=True)
    if dictionaries:
        raise TritonModelException(
            f"{path}: forward has a dictionary among other arguments. Only a single argument of type Dict[str, Tensor] "
            "is supported."
        )
    return LoadedProgram(lambda values: module(**values), [_script_argument(path, argument) for argument in schema])


def _script_argument(path: str, argument: Any) -> Argument:
    kind = str(argument.type)
    inner = kind[9:-1] if kind.startswith("Optional[") else kind
    if inner not in ("Tensor", "List[str]"):
        raise TritonModelException(
            f"{path}: the argument '{argument.name}' of forward is {kind}. Requests can carry Tensor and List[str]: wrap "
            "the model in a module that takes those."
        )
    return Argument(argument.name, not argument.has_default_value(), strings=inner == "List[str]")


def load_class(
    source: str, weights: str, device: str, class_name: str = "", compile_options: Optional[Dict[str, Any]] = None
) -> LoadedProgram:
    """Make a module of a class in the author's file, with weights of a state dict, if the class does not bring its own.

    An empty device leaves the module where its class puts it, and an empty name takes the only class.
    """
    state = archive.read_weights(weights) if weights else None
    module_class = _chosen(source, _classes_in(source), class_name, state)
    module = _made(source, module_class)
    if state is not None:
        try:
            module.load_state_dict(state, strict=True, assign=True)
        except RuntimeError as error:
            raise TritonModelException(
                f"{weights} does not fit {module_class.__name__} of {source}: {_on_one_line(error)}"
            ) from None
        for parameter in module.parameters():
            parameter.requires_grad_(requires_grad=False)
    module.eval()
    if device:
        module.to(device)
    arguments = _signature(source, module.forward)
    run = module if compile_options is None else torch.compile(module, **compile_options)
    if arguments is None:
        return LoadedProgram(lambda values: run(dict(values)), [Argument("inputs")], takes_dictionary=True)
    return LoadedProgram(lambda values: run(**values), arguments)


def _classes_in(source: str) -> "Dict[str, Any]":
    """The modules of torch that a file of Python code defines, by name."""
    spec = importlib.util.spec_from_file_location(CLASS_MODULE, source)
    assert spec is not None
    assert spec.loader is not None
    python = importlib.util.module_from_spec(spec)
    sys.modules[CLASS_MODULE] = python
    directory = os.path.dirname(source)
    if directory not in sys.path:
        sys.path.append(directory)
    spec.loader.exec_module(python)
    return {
        name: value
        for name, value in vars(python).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == CLASS_MODULE
    }


def _chosen(source: str, classes: "Dict[str, Any]", class_name: str, state: "Optional[Dict[str, Any]]") -> Any:
    """The named class, else the only one, else the only one that has the parameters of the state dict."""
    listed = ", ".join(classes)
    if class_name:
        if class_name not in classes:
            raise TritonModelException(
                f"{source} has no subclass of torch.nn.Module called '{class_name}' (parameter MODEL_CLASS); it has "
                f"{listed or 'none'}."
            )
        return classes[class_name]
    if not classes:
        raise TritonModelException(f"{source} defines no subclass of torch.nn.Module.")
    if len(classes) == 1:
        return next(iter(classes.values()))
    fitting = [] if state is None else [value for value in classes.values() if _has_parameters(value, set(state))]
    if len(fitting) != 1:
        raise TritonModelException(
            f"{source} defines several modules: {listed}. Say which one is the model with the parameter MODEL_CLASS."
        )
    return fitting[0]


def _has_parameters(module_class: Any, names: "Set[str]") -> bool:
    try:
        return set(module_class().state_dict()) == names
    except TypeError:  # it needs arguments: it is a part of another one
        return False


def _made(source: str, module_class: Any) -> Any:
    try:
        return module_class()
    except TypeError as error:
        raise TritonModelException(
            f"{source}: {module_class.__name__}() cannot be made without arguments: {error}. Give them defaults."
        ) from None


def _signature(source: str, forward: Callable[..., Any]) -> Optional[List[Argument]]:
    """The arguments of a method; None if its only argument is annotated as a dictionary."""
    parameters = list(inspect.signature(forward).parameters.values())
    if len(parameters) == 1 and _is_dictionary(parameters[0].annotation):
        return None
    arguments = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.POSITIONAL_ONLY:
            raise TritonModelException(
                f"{source}: forward must name its arguments; '{parameter}' cannot be called by name."
            )
        if parameter.kind is not parameter.VAR_KEYWORD:
            arguments.append(Argument(parameter.name, parameter.default is parameter.empty))
    return arguments


def _is_dictionary(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.lower().replace("typing.", "").startswith("dict")
    return annotation is dict or getattr(annotation, "__origin__", None) is dict


def _on_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]


_LEAST_BYTES = 65536
"""Smaller weights stay in memory: a mapping costs whole pages."""


def map_weights(module: Any, path: str) -> int:
    """Replace the memory of large parameters and buffers by private mappings of the file.

    Returns how many bytes are mapped now.

    ``torch.jit.load`` copies all weights into memory of the process. But torch stores each tensor uncompressed in the
    archive, so a mapping of the file serves as well, and instances share one copy. A weight is replaced only by bytes
    that equal its own. Writing to a mapped weight is possible and stays private.
    """
    weights: List[Any] = [*module.parameters(), *module.buffers()]
    large = [weight for weight in weights if _size_bytes(weight) >= _LEAST_BYTES and weight.is_contiguous()]
    records = _records_by_size(path) if large else {}
    mapped_bytes = 0
    for weight in large:
        for offset in records.get(_size_bytes(weight), ()):
            view = np.memmap(path, np.uint8, "c", offset, (_size_bytes(weight),))
            candidate = torch.from_numpy(np.asarray(view)).view(weight.dtype).view(weight.shape)
            if torch.equal(weight.detach().view(-1).view(torch.uint8), candidate.view(-1).view(torch.uint8)):
                weight.data = candidate
                mapped_bytes += view.nbytes
                break
    return mapped_bytes


def _size_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size()) if tensor.layout is torch.strided else 0


def _records_by_size(path: str) -> Dict[int, List[int]]:
    """Offsets in the file of the archive's tensors, by their size in bytes."""
    reader = torch._C.PyTorchFileReader(path)
    found: Dict[int, List[int]] = {}
    for name in reader.get_all_records():
        if name.startswith(("data/", "constants/")):
            found.setdefault(reader.get_record_size(name), []).append(reader.get_record_offset(name))
    return found


_TENSOR = torch.Tensor


class ProgramRunner:
    """A program with the names and the rules of one model; ``guard`` is entered around each run.

    ``arguments`` has the argument's name for the name of each input, and ``outputs`` the data types, such as
    ``TYPE_FP32``, by the names of outputs in config.pbtxt, in order. Inputs go to the device, or stay where they are if
    it is ``""`` or ``cpu``.
    """

    def __init__(
        self,
        program: LoadedProgram,
        arguments: Mapping[str, str],
        outputs: Mapping[str, str],
        device: str,
        guard: Callable[[], ContextManager[Any]],
    ) -> None:
        self._call = program.call
        self._arguments = arguments
        self._data_types = list(outputs.values())
        self._results = Results(list(outputs))
        self._device = "" if device == "cpu" else device
        self._guard = guard

    def run(self, inputs: Dict[str, Any], names: Sequence[str]) -> Dict[str, Any]:
        """Compute all outputs from inputs, both by their names in config.pbtxt."""
        arguments = self._arguments
        values = {arguments[name]: value for name, value in inputs.items()}
        if self._device:
            values = {name: _moved(value, self._device) for name, value in values.items()}
        try:
            with self._guard():
                result = self._call(values)
        except Exception as error:  # noqa: BLE001  the model's code raises anything
            raise TritonModelException(f"PyTorch execute failure: {error}") from None
        outputs = dict(zip(self._results.names, self._results.pick(result)))
        for (name, value), data_type in zip(outputs.items(), self._data_types):
            provided = "TYPE_" + (datatype_of(value.dtype) if isinstance(value, _TENSOR) else "STRING")
            if provided != data_type:
                raise TritonModelException(
                    f"configuration expects datatype {data_type} for output '{name}', model provides {provided}"
                )
        return outputs


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, _TENSOR) else value
