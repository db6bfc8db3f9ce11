"""A model's configured inputs and outputs; every request and response of a test is checked against them."""

from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.spelling import closest
from pybackend_wire.dtypes import BY_CONFIG_NAME


class TensorSpec(NamedTuple):
    """One input or output.

    ``dims`` are as clients see them, the batch dimension included, where -1 is any size; ``model_dims`` are as the model sees them,
    None unless the configuration reshapes them. The datatype is the wire's name, e.g. ``FP32``.
    """

    name: str
    datatype: str
    dims: Tuple[int, ...]
    optional: bool
    model_dims: Optional[Tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.name} ({self.datatype} {list(self.dims)}{', optional' if self.optional else ''})"

    def shape_for_model(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape in which the model receives a valid input."""
        return shape if self.model_dims is None else _reshaped(shape, self.dims, self.model_dims)

    def shape_for_client(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape in which clients receive an output; a shape that does not match stays as it is."""
        return shape if self.model_dims is None else _reshaped(shape, self.model_dims, self.dims)


class Signature(NamedTuple):
    """The tensors of a model by name, in configured order; ``max_batch_size`` is 0 if they have no batch dimension.

    ``controls`` are the names of the control tensors that a sequence batcher would add.
    """

    model_name: str
    max_batch_size: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    controls: Tuple[str, ...]


def signature_of(document: Mapping[str, Any]) -> Signature:
    """Return the signature of a finished configuration."""
    batched = document["max_batch_size"] > 0
    controls = document.get("sequence_batching", {}).get("control_input", ())
    return Signature(
        document["name"],
        document["max_batch_size"],
        _specs(document["input"], batched),
        _specs(document["output"], batched),
        tuple(control["name"] for control in controls),
    )


def nearest(name: str, known: "Iterable[str]") -> str:
    """Return `` Did you mean 'x'?`` for a name that resembles a known one, else nothing."""
    found = closest(name, known)
    return f" Did you mean '{found}'?" if found else ""


def listed(specs: "Iterable[TensorSpec]") -> str:
    """List tensors for a message."""
    return ", ".join(map(str, specs)) or "none"


def shape_text(shape: "Sequence[int]") -> str:
    """Format a shape as the server's messages do: ``[2,3]``."""
    return "[" + ",".join(map(str, shape)) + "]"


def _specs(tensors: "Iterable[Mapping[str, Any]]", batched: bool) -> Dict[str, TensorSpec]:
    specs = {}
    batch: Tuple[int, ...] = (-1,) if batched else ()
    for tensor in tensors:
        reshape = tensor.get("reshape")
        specs[tensor["name"]] = TensorSpec(
            tensor["name"],
            BY_CONFIG_NAME[tensor["data_type"]].name,
            (*batch, *tensor["dims"]),
            bool(tensor.get("optional", False)),
            None if reshape is None else (*batch, *reshape.get("shape", ())),
        )
    return specs


def _reshaped(shape: "Sequence[int]", pattern: "Sequence[int]", target: "Sequence[int]") -> "Sequence[int]":
    """Convert ``shape``, which follows ``pattern``, to the form of ``target``; variable dimensions keep their order."""
    if len(shape) != len(pattern) or any(dim not in (-1, size) for dim, size in zip(pattern, shape)):
        return shape
    variable = iter([size for dim, size in zip(pattern, shape) if dim == -1])
    return [next(variable) if dim == -1 else dim for dim in target]
