"""The inputs and outputs that a model's file states: the configuration is compared with them, and completed from them."""

import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.runtime import current_runtime
from pybackend_sdk.spelling import closest

VARIABLE = -1
"""A dimension of any size."""


class TensorInfo(NamedTuple):
    """An input or output of a model's file.

    Attributes:
        name: as clients use it.
        data_type: as in config.pbtxt, e.g. ``TYPE_FP32``.
        shape: including a batch dimension, -1 for dimensions of any size; None if the file does not state a shape.
        optional: for an input that requests may leave out.
    """

    name: str
    data_type: str
    shape: Optional[Tuple[int, ...]]
    optional: bool = False


class Signature(NamedTuple):
    """All inputs and outputs of a model's file.

    Attributes:
        inputs: in the order of the file.
        outputs: likewise.
        most_rows: the largest batch that the file allows, None if it does not say; 0 if first dimensions of any size
            are not those of a batch.
    """

    inputs: Sequence[TensorInfo]
    outputs: Sequence[TensorInfo]
    most_rows: Optional[int] = None

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of every input and output is of any size, so that it can be the batch's."""
        tensors = [*self.inputs, *self.outputs]
        return (
            self.most_rows != 0
            and bool(tensors)
            and all(tensor.shape is not None and is_batch(tensor.shape) for tensor in tensors)
        )


def is_batch(shape: Tuple[int, ...]) -> bool:
    """Whether the first dimension of a shape can be that of a batch."""
    return bool(shape) and shape[0] == VARIABLE


_CONTROL_TYPES = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}


def model_tensors(config: Mapping[str, Any], kind: str) -> List[Mapping[str, Any]]:
    """The inputs or outputs of a model, by ``kind``: those of the configuration, and those that only the model and the server see.

    Those are the control tensors and states of ``sequence_batching``.
    """
    return [*(config.get(kind) or ()), *_sequence_tensors(config, kind)]


def _sequence_tensors(config: Mapping[str, Any], kind: str) -> List[Mapping[str, Any]]:
    """The tensors that clients do not send or see; an output can be both a state and an output for clients."""
    batching = config.get("sequence_batching") or {}
    controls = [_control_tensor(tensor) for tensor in batching.get("control_input", ())] if kind == "input" else []
    states = [
        {"name": state[f"{kind}_name"], "data_type": state["data_type"], "dims": state["dims"]}
        for state in batching.get("state", ())
    ]
    configured = {tensor["name"] for tensor in config.get(kind) or ()}
    return [tensor for tensor in (*controls, *states) if tensor["name"] not in configured]


def _control_tensor(tensor: Mapping[str, Any]) -> Dict[str, Any]:
    (control,) = tensor["control"]
    pairs = [data_type for field, data_type in _CONTROL_TYPES.items() if control.get(field)]
    return {"name": tensor["name"], "data_type": pairs[0] if pairs else control["data_type"], "dims": [1]}


def check_config(config: Mapping[str, Any], signature: Signature, path: str) -> None:
    """Compare the tensors of a configuration with those of the model's file. Outputs may be left out.

    Args:
        config: the model's configuration, complete.
        signature: of the file.
        path: of the file, for messages.

    Raises:
        TritonModelException: they contradict each other; the text has both sides.
    """
    file = os.path.basename(path)
    _check_tensors(config, "input", signature.inputs, file)
    _check_tensors(config, "output", signature.outputs, file)
    configured = {tensor["name"] for tensor in model_tensors(config, "input")}
    missing = [tensor for tensor in signature.inputs if not tensor.optional and tensor.name not in configured]
    if missing:
        raise TritonModelException(
            f"unable to load model '{config['name']}', configuration expects {len(configured)} inputs, model provides "
            f"{len(signature.inputs)}: add {_described(missing)} to config.pbtxt, or leave all inputs out to have them "
            f"read from {file}"
        )


def configured_shape(config: Mapping[str, Any], tensor: Mapping[str, Any]) -> "Tuple[int, ...]":
    """The shape of a configured tensor as the model sees it: reshaped, and with the batch dimension."""
    reshape = tensor.get("reshape")
    dims = reshape["shape"] if reshape is not None else tensor["dims"]
    return tuple(int(size) for size in ([VARIABLE, *dims] if config["max_batch_size"] > 0 else dims))


def _check_tensors(config: Mapping[str, Any], kind: str, stated: Sequence[TensorInfo], file: str) -> None:
    by_name = {tensor.name: tensor for tensor in stated}
    for configured in model_tensors(config, kind):
        tensor = by_name.get(configured["name"])
        if tensor is None:
            raise TritonModelException(_unexpected(config, kind, configured["name"], stated, file))
        if configured["data_type"] != tensor.data_type:
            raise TritonModelException(
                f"unable to load model '{config['name']}', configuration expects datatype {configured['data_type']} for "
                f"{kind} '{tensor.name}', model provides {tensor.data_type} ({file})"
            )
        if tensor.shape is not None:
            _check_shape(config, configured, tensor.shape, file)


def _check_shape(config: Mapping[str, Any], tensor: Mapping[str, Any], shape: "Tuple[int, ...]", file: str) -> None:
    where = f"model '{config['name']}', tensor '{tensor['name']}'"
    batches = config["max_batch_size"] > 0
    if batches and not is_batch(shape):
        raise TritonModelException(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {list(shape)} ({file}): write max_batch_size: 0 "
            "and all dims, or export the model with a dynamic batch dimension"
        )
    wanted = configured_shape(config, tensor)
    if not shape and not batches and wanted == (1,):
        return  # a scalar, which configurations write like this
    if len(wanted) == len(shape) and all(size in {VARIABLE, given} for size, given in zip(shape, wanted)):
        return
    how = " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape)"
    raise TritonModelException(
        f"{where}: the model expects {len(shape)} dimensions (shape {list(shape)}, in {file}) but the model configuration "
        f"specifies {len(wanted)} dimensions{how if batches else ''}: {list(wanted)}"
    )


def _unexpected(config: Mapping[str, Any], kind: str, name: str, stated: Sequence[TensorInfo], file: str) -> str:
    near = closest(name, [tensor.name for tensor in stated])
    advice = f" Did you mean '{near}'?" if near else ""
    return (
        f"unexpected inference {kind} '{name}', allowed {kind}s are: {_described(stated)} (in {file} of model "
        f"'{config['name']}').{advice}"
    )


def _described(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(
        f"{tensor.name} {tensor.data_type}{'' if tensor.shape is None else ' ' + str(list(tensor.shape))}"
        for tensor in tensors
    )


_BATCH_SIZE_SETTING, _DEFAULT_BATCH_SIZE = "default-max-batch-size", 4
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete_config(
    config: ModelConfig, signature: Signature, path: str, *, batch_size: int = _DEFAULT_BATCH_SIZE
) -> ModelConfig:
    """Fill in what a configuration leaves out, and compare the rest with the model's file.

    A model whose tensors all begin with a dimension of any size gets ``max_batch_size``
    (``--backend-config=default-max-batch-size=N``, else ``batch_size``) and, if that is more than 1 and no scheduler is
    configured, dynamic batching. It does not if the configuration writes that dimension out.

    Args:
        config: the argument of ``auto_complete_config``.
        signature: of the file.
        path: of the file, for messages.
        batch_size: what is usual for such models, 1 or more.

    Returns:
        The same object.

    Raises:
        TritonModelException: the configuration contradicts the file.
    """
    document = config.as_dict()
    document.setdefault("max_batch_size", 0)
    inputs, outputs = document.setdefault("input", []), document.setdefault("output", [])
    if document["max_batch_size"] == 0 and signature.can_batch and _leaves_batching_open(document, signature):
        _set_batching(config, document, signature.most_rows, batch_size)
    batches = document["max_batch_size"] > 0
    _complete(inputs, _for_clients(document, "input", signature.inputs), batches)
    _complete(outputs, _for_clients(document, "output", signature.outputs), batches)
    check_config(document, signature, path)
    return config


def _leaves_batching_open(document: Dict[str, Any], signature: Signature) -> bool:
    """Whether no configured tensor has as many dimensions as in the file, where the first one is the batch's."""
    shapes = {tensor.name: tensor.shape for tensor in (*signature.inputs, *signature.outputs)}
    return not any(
        tensor.get("dims") and len(configured_shape(document, tensor)) >= len(shapes.get(tensor["name"]) or ())
        for tensor in (*model_tensors(document, "input"), *model_tensors(document, "output"))
    )


def _for_clients(document: Mapping[str, Any], kind: str, stated: Sequence[TensorInfo]) -> List[TensorInfo]:
    """The tensors of a file but those that clients do not send or see."""
    others = {tensor["name"] for tensor in _sequence_tensors(document, kind)}
    return [tensor for tensor in stated if tensor.name not in others]


def _set_batching(config: ModelConfig, document: Dict[str, Any], most_rows: Optional[int], usual: int) -> None:
    size = int(current_runtime().backend_settings.get(_BATCH_SIZE_SETTING, usual))
    if most_rows is not None:
        size = min(size, most_rows)
    config.set_max_batch_size(size)
    if size > 1 and not any(document.get(scheduler) is not None for scheduler in _SCHEDULERS):
        config.set_dynamic_batching()


def _complete(configured: Any, stated: Sequence[TensorInfo], batches: bool) -> None:
    if not configured:
        configured.extend({"name": tensor.name} for tensor in stated)
        for entry, tensor in zip(configured, stated):
            if tensor.optional:
                entry["optional"] = True
    by_name = {tensor.name: tensor for tensor in stated}
    for entry in configured:
        found = by_name.get(entry["name"])
        if found is None:
            continue  # the check that follows says so
        if entry.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
            entry["data_type"] = found.data_type
        if not entry.get("dims"):
            if found.shape is None:
                raise TritonModelException(
                    f"the file does not state the shape of '{found.name}': write its dims into config.pbtxt"
                )
            dims = list(found.shape[1:] if batches else found.shape)
            entry["dims"] = dims or [1]
            if not dims and batches:
                entry["reshape"] = {"shape": []}
