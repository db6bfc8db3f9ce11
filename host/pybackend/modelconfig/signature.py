"""A model's inputs and outputs: the part of a configuration that every request is checked against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pybackend.modelconfig.schema import ModelConfig, TensorConfig
from pybackend_wire.dtypes import ITEMSIZE

ExtrasOf = Callable[[ModelConfig], Mapping[str, object]]
"""The meaning of a completed configuration for further APIs, by their names. Raises ModelConfigError: it contradicts
itself."""


def no_extras(_config: ModelConfig) -> Mapping[str, object]:
    """For a server without further APIs."""
    return {}


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """One input or output."""

    name: str
    datatype: str  # wire name, e.g. ``FP32``.
    dims: tuple[int, ...]  # configured dimensions without the batch dimension; -1 is any size
    optional: bool = False  # an input that a request may omit
    reshape: tuple[int, ...] | None = None  # dimensions that the model sees, if they differ from ``dims``; else None
    labels: tuple[bytes, ...] = field(default=(), repr=False)  # names of an output's elements, by index

    @property
    def itemsize(self) -> int:
        """Bytes per element, 0 for BYTES."""
        return ITEMSIZE[self.datatype]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ModelSignature:
    """The tensors of one model version."""

    model_name: str  # for messages
    max_batch_size: int  # 0 if requests carry no batch dimension
    inputs: Mapping[str, TensorSignature]  # by name, in configured order
    outputs: Mapping[str, TensorSignature]  # by name, in configured order
    # the meaning of the tensors for further APIs, by the names of their rows in :mod:`pybackend.plugins`
    extras: Mapping[str, object] = field(default_factory=dict)
    required_input_count: int = field(init=False)  # number of inputs that every request must have
    has_reshape: bool = field(init=False)  # some tensor's shape differs between clients and the model

    def __post_init__(self) -> None:
        required = sum(not tensor.optional for tensor in self.inputs.values())
        object.__setattr__(self, "required_input_count", required)
        tensors = (*self.inputs.values(), *self.outputs.values())
        object.__setattr__(self, "has_reshape", any(tensor.reshape is not None for tensor in tensors))

    def shape_for_model(self, tensor: TensorSignature, shape: Sequence[int]) -> Sequence[int]:
        """The shape in which the model receives an input. ``shape`` has been checked against ``dims``."""
        if tensor.reshape is None:
            return shape
        return _reshaped(shape, tensor.dims, tensor.reshape, int(self.max_batch_size > 0))

    def shape_for_client(self, tensor: TensorSignature, shape: Sequence[int]) -> Sequence[int]:
        """The shape in which clients receive an output. A shape that contradicts the configuration is kept."""
        if tensor.reshape is None:
            return shape
        return _reshaped(shape, tensor.reshape, tensor.dims, int(self.max_batch_size > 0))


def signature_of(
    config: ModelConfig,
    labels: Mapping[str, tuple[bytes, ...]] | None = None,
    extras: Mapping[str, object] | None = None,
) -> ModelSignature:
    """The signature of a finished configuration, with labels from its label files."""
    known = labels or {}
    return ModelSignature(
        config.name,
        config.max_batch_size,
        {tensor.name: _tensor_signature(tensor) for tensor in config.inputs},
        {tensor.name: _tensor_signature(tensor, known.get(tensor.name, ())) for tensor in config.outputs},
        extras or {},
    )


def _tensor_signature(tensor: TensorConfig, labels: tuple[bytes, ...] = ()) -> TensorSignature:
    return TensorSignature(tensor.name, tensor.datatype, tensor.dims, tensor.optional, tensor.reshape, labels)


def _reshaped(shape: Sequence[int], pattern: Sequence[int], target: Sequence[int], batch_dims: int) -> Sequence[int]:
    """``shape``, which matches ``pattern`` after its batch dimension, rearranged to match ``target``.

    Both patterns have the same number of variable dimensions, in the same order.
    """
    sizes = shape[batch_dims:]
    if len(sizes) != len(pattern) or any(dim not in (-1, size) for dim, size in zip(pattern, sizes, strict=True)):
        return shape
    variable = iter([size for dim, size in zip(pattern, sizes, strict=True) if dim == -1])
    return [*shape[:batch_dims], *(next(variable) if dim == -1 else dim for dim in target)]
