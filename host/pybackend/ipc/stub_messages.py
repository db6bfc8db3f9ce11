"""What a stub may say, as types that msgspec checks while it decodes: the host trusts nothing else about a frame.

The layout is that of :mod:`pybackend_wire.messages`; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import Frame
from pybackend_wire.messages import StubMessage

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Signed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Unsigned = Annotated[int, Meta(ge=0)]
"""Up to 64 bits, which msgspec cannot say: whoever uses it checks :data:`UNSIGNED_MAX`."""
UNSIGNED_MAX = 2**64 - 1
Unsigned32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Code = Annotated[int, Meta(ge=0, le=7)]
ParameterValue = bool | Signed | float | str

MOST_DIMENSIONS = 64
"""Of a tensor, which is numpy's bound too: the product of more of them, as long as a frame, would take minutes."""


class Failure(Struct, array_like=True, frozen=True):
    """An error as data."""

    code: Code
    message: str


class Place(Struct, array_like=True, frozen=True):
    """A tensor and where its bytes lie."""

    name: str
    datatype: str
    shape: Annotated[list[Natural], Meta(max_length=MOST_DIMENSIONS)]
    segment: Natural
    offset: Natural
    nbytes: Natural


class RequestResult(Struct, array_like=True, frozen=True):
    """One request's answer."""

    error: Failure | None
    outputs: list[Place]
    parameters: dict[str, ParameterValue] | None


class Hello(Struct, array_like=True, frozen=True, tag=int(StubMessage.HELLO)):
    """The stub's first words."""

    protocol_version: int
    pid: int
    python: str
    numpy: str
    codecs: list[str]
    confined: dict[str, str]


class Completed(Struct, array_like=True, frozen=True, tag=int(StubMessage.COMPLETED)):
    """The model is imported and its configuration completed."""

    config: dict[str, Any] | None


class Initialized(Struct, array_like=True, frozen=True, tag=int(StubMessage.INITIALIZED)):
    """The model is ready to execute."""

    has_is_ready: bool


class Failed(Struct, array_like=True, frozen=True, tag=int(StubMessage.FAILED)):
    """The model could not be loaded; the stub exits."""

    phase: str
    failure: Failure


class Result(Struct, array_like=True, frozen=True, tag=int(StubMessage.RESULT)):
    """Outcome of an execution; None for a request that is answered otherwise."""

    execution: Natural
    began_ns: Natural
    infer_start_ns: Natural
    infer_end_ns: Natural
    done_ns: Natural
    results: list[RequestResult | None]


class Rescheduled(Struct, array_like=True, frozen=True, tag=int(StubMessage.RESCHEDULED)):
    """Requests that the model wants to execute once more."""

    execution: Natural
    requests: list[Natural]


class Respond(Struct, array_like=True, frozen=True, tag=int(StubMessage.RESPOND)):
    """One of the responses to a request."""

    execution: Natural
    request: Natural
    final: bool
    result: RequestResult | None


class HandedBack(Struct, array_like=True, frozen=True, tag=int(StubMessage.HANDED_BACK)):
    """Executions that were not begun."""

    executions: list[Natural]


class RequestOptions(Struct, array_like=True, frozen=True):
    """What few requests set."""

    id: str
    correlation_id: Unsigned | str
    flags: Unsigned32
    priority: Natural
    timeout_us: Unsigned
    parameters: dict[str, ParameterValue] | None

    def __post_init__(self) -> None:
        """Refuse what json can say and msgpack cannot: it goes on to another stub.

        Raises:
            ValueError: a number beyond 64 bits.
        """
        if self.timeout_us > UNSIGNED_MAX or (
            isinstance(self.correlation_id, int) and self.correlation_id > UNSIGNED_MAX
        ):
            raise ValueError("a number beyond 64 bits")


class Call(Struct, array_like=True, frozen=True, tag=int(StubMessage.CALL)):
    """The model runs another model."""

    call: Natural
    model_name: str
    model_version: Signed
    decoupled: bool
    execution: Natural
    inputs: list[Place]
    requested_outputs: list[str]
    options: RequestOptions | None


class CancelCall(Struct, array_like=True, frozen=True, tag=int(StubMessage.CANCEL_CALL)):
    """The model wants no more responses to a call."""

    call: Natural


class Readiness(Struct, array_like=True, frozen=True, tag=int(StubMessage.READINESS)):
    """What ``is_ready()`` said."""

    ready: bool
    reason: str


class NewFamily(Struct, array_like=True, frozen=True, tag=int(StubMessage.NEW_FAMILY)):
    """Register a family of metrics."""

    call: Natural
    name: str
    description: str
    metric_kind: Annotated[int, Meta(ge=0, le=2)]


class NewMetric(Struct, array_like=True, frozen=True, tag=int(StubMessage.NEW_METRIC)):
    """Register a series of a family."""

    call: Natural
    family: Natural
    labels: dict[str, str]
    buckets: list[float] | None


class ChangeMetric(Struct, array_like=True, frozen=True, tag=int(StubMessage.CHANGE_METRIC)):
    """Change a series."""

    metric: Natural
    change: Annotated[int, Meta(ge=0, le=2)]
    value: float | Literal["inf", "-inf", "nan"]


class ReadMetric(Struct, array_like=True, frozen=True, tag=int(StubMessage.READ_METRIC)):
    """Ask for the value of a series."""

    call: Natural
    metric: Natural


class DropMetric(Struct, array_like=True, frozen=True, tag=int(StubMessage.DROP_METRIC)):
    """The model let go of a series or a family."""

    handle: Natural


class LoadModel(Struct, array_like=True, frozen=True, tag=int(StubMessage.LOAD_MODEL)):
    """Load or reload a model."""

    call: Natural
    model_name: str
    config: str
    files: list[Place]


class UnloadModel(Struct, array_like=True, frozen=True, tag=int(StubMessage.UNLOAD_MODEL)):
    """Begin to unload a model."""

    call: Natural
    model_name: str
    unload_dependents: bool


class IsModelReady(Struct, array_like=True, frozen=True, tag=int(StubMessage.IS_MODEL_READY)):
    """Ask whether a model takes requests."""

    call: Natural
    model_name: str
    model_version: str


class FreeInput(Struct, array_like=True, frozen=True, tag=int(StubMessage.FREE_INPUT)):
    """Input blocks that the model let go."""

    blocks: list[tuple[Natural, Natural]]


class NeedOutput(Struct, array_like=True, frozen=True, tag=int(StubMessage.NEED_OUTPUT)):
    """The stub has no room for an output of this size."""

    nbytes: Natural


class Finalized(Struct, array_like=True, frozen=True, tag=int(StubMessage.FINALIZED)):
    """``finalize`` has returned."""


class Detached(Struct, array_like=True, frozen=True, tag=int(StubMessage.DETACHED)):
    """The stub has unmapped a segment."""

    segment: Natural


Question = NewFamily | NewMetric | ChangeMetric | ReadMetric | DropMetric | LoadModel | UnloadModel | IsModelReady
"""What a model asks of its host besides running other models."""

Message = (
    Hello
    | Completed
    | Initialized
    | Failed
    | Result
    | FreeInput
    | NeedOutput
    | Finalized
    | Detached
    | Respond
    | Rescheduled
    | HandedBack
    | Call
    | CancelCall
    | Readiness
    | Question
)

_DECODERS: dict[str, msgspec.msgpack.Decoder[list[Message]] | msgspec.json.Decoder[list[Message]]] = {
    "msgpack": msgspec.msgpack.Decoder(list[Message]),
    "json": msgspec.json.Decoder(list[Message]),
}

KIND: dict[type, int] = {
    Hello: StubMessage.HELLO,
    Completed: StubMessage.COMPLETED,
    Initialized: StubMessage.INITIALIZED,
    Failed: StubMessage.FAILED,
    Result: StubMessage.RESULT,
    FreeInput: StubMessage.FREE_INPUT,
    NeedOutput: StubMessage.NEED_OUTPUT,
    Finalized: StubMessage.FINALIZED,
    Detached: StubMessage.DETACHED,
    Respond: StubMessage.RESPOND,
    Rescheduled: StubMessage.RESCHEDULED,
    HandedBack: StubMessage.HANDED_BACK,
    Call: StubMessage.CALL,
    CancelCall: StubMessage.CANCEL_CALL,
    Readiness: StubMessage.READINESS,
    NewFamily: StubMessage.NEW_FAMILY,
    NewMetric: StubMessage.NEW_METRIC,
    ChangeMetric: StubMessage.CHANGE_METRIC,
    ReadMetric: StubMessage.READ_METRIC,
    DropMetric: StubMessage.DROP_METRIC,
    LoadModel: StubMessage.LOAD_MODEL,
    UnloadModel: StubMessage.UNLOAD_MODEL,
    IsModelReady: StubMessage.IS_MODEL_READY,
}
"""The kind of each message, for the table of what is legal when."""


def decode(codec: str, frame: Frame) -> list[Message]:
    """The messages of a frame.

    Raises:
        RemoteProtocolError: the frame is not what :mod:`pybackend_wire.messages` allows.
    """
    try:
        return _DECODERS[codec].decode(frame.metadata)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a frame does not decode: {error}") from error
