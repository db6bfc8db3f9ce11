"""What a bound function is to its clients: its tensors, and how its requests are batched."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pybackend_bind.exceptions import PyTritonBadParameterError, PyTritonModelConfigError, PyTritonValidationError
from pybackend_wire.dtypes import BY_CONFIG_NAME, BY_NUMPY, DATATYPES, DataType


@dataclass(frozen=True)
class Tensor:
    """An input or an output of a function, without the batch dimension; -1 stands for a dimension of any size."""

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None  # INPUT_1, OUTPUT_1 and so on if it has none
    optional: bool | None = False

    def __post_init__(self) -> None:
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)

    @property
    def datatype(self) -> DataType:
        """The datatype of the protocol. Raises PyTritonValidationError: there is none for the dtype."""
        row = None
        with suppress(TypeError):  # it is no dtype at all
            dtype = np.dtype("void" if self.dtype is None else self.dtype)
            row = DATATYPES["BYTES"] if dtype.kind in "OSU" else BY_NUMPY.get(dtype)
        if row is None:
            raise PyTritonValidationError(
                f"tensor '{self.name}' has dtype {self.dtype!r}, which has no datatype: use bool, int8 to int64, uint8 to uint64, "
                "float16 to float64, or np.bytes_"
            )
        return row

    def has_room_for(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape, without the batch dimension, fits."""
        return len(shape) == len(self.shape) and all(
            most in {-1, size} for size, most in zip(shape, self.shape, strict=True)
        )


class DeviceKind(enum.Enum):
    """Where a function runs, for clients that read the configuration: it decides by itself."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """What happens to a request that has waited too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass
class QueuePolicy:
    """How requests wait; times in microseconds, a size of 0 is no limit."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def _document(self) -> dict[str, Any]:
        return {
            "timeout_action": self.timeout_action.value,
            "default_timeout_microseconds": int(self.default_timeout_microseconds),
            "allow_timeout_override": self.allow_timeout_override,
            "max_queue_size": int(self.max_queue_size),
        }


@dataclass
class DynamicBatcher:
    """How waiting requests become batches."""

    max_queue_delay_microseconds: int = 0
    preferred_batch_size: list[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: dict[int, QueuePolicy] | None = None

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "max_queue_delay_microseconds": int(self.max_queue_delay_microseconds),
            "preferred_batch_size": [int(size) for size in self.preferred_batch_size or ()],
            "preserve_ordering": self.preserve_ordering,
            "priority_levels": self.priority_levels,
            "default_priority_level": self.default_priority_level,
        }
        if self.default_queue_policy is not None:
            document["default_queue_policy"] = self.default_queue_policy._document()
        if self.priority_queue_policy:
            policies = self.priority_queue_policy.items()
            document["priority_queue_policy"] = {level: policy._document() for level, policy in policies}
        return document


@dataclass
class ModelWarmup:
    """Requests that each instance executes before it is ready."""

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]
    count: int


@dataclass
class WarmupInput:
    """An input of these requests: zeros, or random values."""

    dtype: Any
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None

    def _document(self, name: str) -> dict[str, Any]:
        if self.input_data_file:
            raise PyTritonBadParameterError(
                f"the warm-up of input '{name}' names a file: use zero_data or random_data, or call the function before bind"
            )
        if not (self.zero_data or self.random_data):
            raise PyTritonBadParameterError(f"the warm-up of input '{name}' needs zero_data=True or random_data=True")
        data = "zero_data" if self.zero_data else "random_data"
        datatype = Tensor(tuple(self.shape), self.dtype, name).datatype
        return {"data_type": datatype.config_name, "dims": [int(size) for size in self.shape], data: True}


@dataclass
class ModelConfig:
    """How a function is served."""

    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher = field(default_factory=DynamicBatcher)
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: list[ModelWarmup] | None = None
    parameters: dict[str, str] = field(
        default_factory=dict
    )  # settings of the server for this model, such as time limits


@dataclass
class TritonModelConfig:
    """A model as its decorators and clients see it."""

    model_name: str
    model_version: int = 1
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    batching: bool = True
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = None
    response_cache: bool = False
    decoupled: bool = False
    model_warmup: list[ModelWarmup] | None = None
    instance_group: Mapping[DeviceKind, int] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The configuration as ``config.pbtxt`` has it. Raises PyTritonError: it contradicts itself."""
        document: dict[str, Any] = {
            "name": self.model_name,
            "backend": "python",
            "max_batch_size": self.max_batch_size if self.batching else 0,
            "input": [{**_described(each), **({"optional": True} if each.optional else {})} for each in self.inputs],
            "output": [_described(each) for each in self.outputs],
            "instance_group": [{"count": sum(self.instance_group.values()), "kind": "KIND_CPU"}],
            "parameters": {name: {"string_value": str(value)} for name, value in self.parameters.items()},
            "version_policy": {"specific": {"versions": [self.model_version]}},
        }
        if self.batching:
            if type(self.max_batch_size) is not int or self.max_batch_size < 1:
                raise PyTritonBadParameterError(
                    f"max_batch_size is {self.max_batch_size!r}: it must be 1 or more, or batching=False"
                )
            document["dynamic_batching"] = (self.batcher or DynamicBatcher())._document()
        if self.decoupled:
            document["model_transaction_policy"] = {"decoupled": True}
        if self.response_cache:
            document["response_cache"] = {"enable": True}
        if self.model_warmup:
            document["model_warmup"] = [
                {
                    "name": each.name,
                    "batch_size": each.batch_size,
                    "inputs": {name: it._document(name) for name, it in each.inputs.items()},
                    "count": each.count,
                }
                for each in self.model_warmup
            ]
        return document

    def text(self) -> str:
        """The same as text. Raises PyTritonError, likewise."""
        from google.protobuf.json_format import ParseDict, ParseError
        from google.protobuf.text_format import MessageToString

        from pybackend.modelconfig.protobuf.messages import message_class

        try:
            document = self.document()
            message = ParseDict(document, message_class("inference.ModelConfig")())
        except (ParseError, AttributeError, TypeError, ValueError) as error:  # values of wrong types
            raise PyTritonModelConfigError(
                f"the configuration of model '{self.model_name}' is wrong: {error}"
            ) from None
        text = MessageToString(message)
        return f"max_batch_size: 0\n{text}" if not document["max_batch_size"] else text

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TritonModelConfig:
        """The same from a server's answer."""
        most = int(document.get("max_batch_size", 0))
        groups = document.get("instance_group", [])
        return cls(
            model_name=document["name"],
            inputs=[_tensor(each) for each in document.get("input", [])],
            outputs=[_tensor(each) for each in document.get("output", [])],
            batching=most > 0,
            max_batch_size=most,
            response_cache=bool(document.get("response_cache", {}).get("enable", False)),
            decoupled=bool(document.get("model_transaction_policy", {}).get("decoupled", False)),
            instance_group={DeviceKind(each.get("kind", "KIND_AUTO")): int(each.get("count", 1)) for each in groups},
        )


def named(tensors: Any, prefix: str) -> list[Tensor]:
    """The same tensors, each with a name. Raises PyTritonValidationError: these are no tensors of a model."""
    if (
        isinstance(tensors, str)
        or not isinstance(tensors, Sequence)
        or not all(isinstance(it, Tensor) for it in tensors)
    ):
        raise PyTritonValidationError(
            f"{prefix.lower()}s is {tensors!r}: pass a list of Tensor(name=..., dtype=..., shape=...)"
        )
    for number, each in enumerate(tensors, 1):
        if not isinstance(each.shape, Sequence) or not all(isinstance(size, int | np.integer) for size in each.shape):
            raise PyTritonValidationError(
                f"the shape of tensor '{each.name or f'{prefix}_{number}'}' is {each.shape!r}: pass a tuple of whole numbers, -1 for any "
                "size, such as (-1, 3)"
            )
    found = [
        Tensor(tuple(each.shape), each.dtype, each.name or f"{prefix}_{number}", each.optional)
        for number, each in enumerate(tensors, 1)
    ]
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PyTritonValidationError(f"two of the {prefix.lower()}s are called '{twice}'")
    for each in found:
        _ = each.datatype  # it has one
    return found


def check_name(model_name: Any) -> None:
    """Raise PyTritonValidationError unless a model may have this name."""
    if (
        not isinstance(model_name, str)
        or not re.fullmatch(r"[A-Za-z0-9._-]+", model_name)
        or model_name.startswith(".")
    ):
        raise PyTritonValidationError(
            f"{model_name!r} is no name for a model: use letters, digits, dots, underscores and dashes, and no dot at the beginning"
        )


def _described(tensor: Tensor) -> dict[str, Any]:
    dims = [int(size) for size in tensor.shape]
    return {"name": tensor.name, "data_type": tensor.datatype.config_name, "dims": dims}


def _tensor(described: Mapping[str, Any]) -> Tensor:
    row = BY_CONFIG_NAME.get(described["data_type"])
    dtype = np.float32 if row is None or row.numpy is None else np.bytes_ if row.name == "BYTES" else row.numpy.type
    return Tensor(tuple(map(int, described["dims"])), dtype, described["name"], bool(described.get("optional", False)))
