"""Archives of ``torch.export`` and AOTInductor: they say what they take and return."""

import logging
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch.utils import _pytree as pytree

from pybackend_backends.pytorch import archive
from pybackend_backends.pytorch.arguments import Argument
from pybackend_backends.pytorch.programs import LoadedProgram
from pybackend_backends.pytorch.tensors import datatype_of
from pybackend_sdk.backend import TensorInfo
from pybackend_sdk.error import TritonModelException


class Description(NamedTuple):
    """The tensors of a program, from its file or from a trial run.

    Outputs by the keys of a dictionary if it returns one.

    ``most_rows`` is the largest first dimension that all of them share, None if it has no bound; 0 if they share none.
    """

    inputs: List[TensorInfo]
    outputs: Union[List[TensorInfo], Dict[str, TensorInfo]]
    most_rows: Optional[int]


class ExportedProgram(LoadedProgram):
    """A program of ``torch.export``, with its signature."""

    def __init__(self, exported: Any, module: Any) -> None:
        paths = pytree.tree_flatten_with_path(_skeleton(exported.call_spec.in_spec))[0]
        names = exported.graph_signature.user_inputs
        arguments = [Argument(str(name), aliases=(_path_name(path),)) for name, (path, _) in zip(names, paths)]
        super().__init__(
            _Call(exported.call_spec.in_spec, [argument.name for argument in arguments], module), arguments
        )
        self.description = _described(exported, arguments)


class _Call:
    """Builds the positional and keyword arguments from values by name."""

    def __init__(self, in_spec: Any, names: Sequence[str], module: Any) -> None:
        self._spec = in_spec
        self._names = names
        self._module = module

    def __call__(self, values: Mapping[str, Any]) -> Any:
        args, kwargs = pytree.tree_unflatten([values[name] for name in self._names], self._spec)
        return self._module(*args, **kwargs)


def load_exported(path: str, device: str, compile_options: Optional[Dict[str, Any]] = None) -> ExportedProgram:
    """Load what ``torch.export.save`` wrote."""
    exported = _read(path)
    constants = [name for name in exported.graph_signature.user_inputs if not isinstance(name, str)]
    if constants:
        raise TritonModelException(
            f"{path}: the program takes the plain value {constants[0]!r} beside tensors, and requests can carry tensors "
            "only. Export it with that value fixed in the module."
        )
    if device not in ("", "cpu"):
        from torch.export.passes import move_to_device_pass

        exported = move_to_device_pass(exported, device)
    module = exported.module()
    return ExportedProgram(exported, module if compile_options is None else torch.compile(module, **compile_options))


def _read(path: str) -> Any:
    logging.getLogger("torch.export").setLevel(logging.ERROR)  # it logs the traceback of what it then raises
    try:
        return torch.export.load(path)
    except Exception as error:  # noqa: BLE001  torch raises many types for a bad file
        raise TritonModelException(
            f"{path} cannot be loaded as an archive of torch.export by torch {torch.__version__}: "
            f"{archive.beginning_of(error)} Archives can be read by the version of torch that wrote them."
        ) from None


def load_compiled(path: str) -> LoadedProgram:
    """Load native code that AOTInductor compiled."""
    try:
        loaded = torch._inductor.aoti_load_package(path)
        in_spec = pytree.treespec_loads(loaded.loader.get_call_spec()[0])
    except Exception as error:  # noqa: BLE001  torch raises many types for a bad file
        raise TritonModelException(
            f"{path} cannot be loaded as AOTInductor's code by torch {torch.__version__}: {archive.beginning_of(error)}"
        ) from None
    names = [_path_name(path) for path, _ in pytree.tree_flatten_with_path(_skeleton(in_spec))[0]]
    return LoadedProgram(_Call(in_spec, names, loaded), [Argument(name, aliases=_last_key(name)) for name in names])


def _last_key(name: str) -> Tuple[str, ...]:
    key = name.rpartition("[")[2].rstrip("]")
    return () if key.isdigit() else (key,)


def _skeleton(in_spec: Any) -> Any:
    return pytree.tree_unflatten(list(range(in_spec.num_leaves)), in_spec)


def _path_name(path: Sequence[Any]) -> str:
    """``ARGS[0]`` or ``KWARGS[key]``, with further keys if the argument is a container."""
    first = "ARGS" if _key(path[0]) == "0" else "KWARGS"
    return first + "".join(f"[{_key(entry)}]" for entry in path[1:])


def _key(entry: Any) -> str:
    for attribute in ("idx", "key", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _described(exported: Any, arguments: Sequence[Argument]) -> Description:
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    given = [values[argument.name] for argument in arguments]
    inputs = [tensor_info(argument.name, value) for argument, value in zip(arguments, given)]
    returned = [values.get(name) if isinstance(name, str) else None for name in exported.graph_signature.user_outputs]
    result = pytree.tree_unflatten(returned, exported.call_spec.out_spec)
    return Description(inputs, described_result(result), _most_rows(exported, [*given, *returned]))


def described_result(result: Any) -> "Union[List[TensorInfo], Dict[str, TensorInfo]]":
    """The tensors that ``forward`` returned, with the names that outputs have by default."""
    if isinstance(result, dict):
        return {
            str(key): tensor_info(str(key), value) for key, value in result.items() if isinstance(value, torch.Tensor)
        }
    values = result if isinstance(result, (tuple, list)) else (result,)
    return [
        tensor_info(f"OUTPUT__{place}", value) for place, value in enumerate(values) if isinstance(value, torch.Tensor)
    ]


def tensor_info(name: str, value: Any) -> TensorInfo:
    """A tensor's name, datatype and shape; symbolic dimensions are -1."""
    shape = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return TensorInfo(name, "TYPE_" + datatype_of(value.dtype), shape)


def _most_rows(exported: Any, values: Sequence[Any]) -> Optional[int]:
    """The bound of the first dimension, if all tensors share one that may vary."""
    firsts = [value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else 0 for value in values]
    if not firsts or isinstance(firsts[0], int) or any(str(first) != str(firsts[0]) for first in firsts):
        return 0
    for symbol, bounds in exported.range_constraints.items():
        if str(symbol) == str(firsts[0]):
            upper = bounds.upper
            return int(upper) if getattr(upper, "is_Integer", False) and int(upper) < 2**31 else None
    return None
