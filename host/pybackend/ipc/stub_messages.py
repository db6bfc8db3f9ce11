"""What a stub may say, as types that msgspec checks while it decodes: the host trusts nothing else about a frame.

The layout is that of :mod:`pybackend_wire.messages`; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.framing import Frame
from pybackend_wire.messages import StubMessage

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Code = Annotated[int, Meta(ge=0, le=7)]
ParameterValue = bool | int | float | str

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


class Completed(Struct, array_like=True, frozen=True, tag=int(StubMessage.COMPLETED)):
    """The model is imported and its configuration completed."""

    config: dict[str, Any] | None


class Initialized(Struct, array_like=True, frozen=True, tag=int(StubMessage.INITIALIZED)):
    """The model is ready to execute."""


class Failed(Struct, array_like=True, frozen=True, tag=int(StubMessage.FAILED)):
    """The model could not be loaded; the stub exits."""

    phase: str
    failure: Failure


class Result(Struct, array_like=True, frozen=True, tag=int(StubMessage.RESULT)):
    """Outcome of the oldest execution not yet answered."""

    began_ns: Natural
    infer_start_ns: Natural
    infer_end_ns: Natural
    done_ns: Natural
    results: list[RequestResult]


class FreeInput(Struct, array_like=True, frozen=True, tag=int(StubMessage.FREE_INPUT)):
    """Input blocks that the model let go."""

    blocks: list[tuple[Natural, Natural]]


class NeedOutput(Struct, array_like=True, frozen=True, tag=int(StubMessage.NEED_OUTPUT)):
    """The stub has no room for an output of this size."""

    nbytes: Natural


class Log(Struct, array_like=True, frozen=True, tag=int(StubMessage.LOG)):
    """A line for the host's log."""

    level: Natural
    file: str
    line: Natural
    message: str


class Finalized(Struct, array_like=True, frozen=True, tag=int(StubMessage.FINALIZED)):
    """``finalize`` has returned."""


class Detached(Struct, array_like=True, frozen=True, tag=int(StubMessage.DETACHED)):
    """The stub has unmapped a segment."""

    segment: Natural


Message = Hello | Completed | Initialized | Failed | Result | FreeInput | NeedOutput | Log | Finalized | Detached

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
    Log: StubMessage.LOG,
    Finalized: StubMessage.FINALIZED,
    Detached: StubMessage.DETACHED,
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
