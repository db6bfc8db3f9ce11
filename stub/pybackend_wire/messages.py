"""What host and stub say to each other: two families of messages, and which of them is legal when.

A message is a flat sequence whose first element is its kind. It holds plain values only (None, bool, int, float, str,
lists, dicts with str keys), so that msgpack and json carry it alike. Tensor bytes never stand in a message: a
:class:`TensorPlace` says where they lie.

    host                                        stub
      <------------------ HELLO ------------------      always json: settles the codec
      ------------------- LOAD ------------------>      import model.py, auto_complete_config
      <---------------- COMPLETED ----------------
      ---------------- INITIALIZE --------------->
      <--------------- INITIALIZED ---------------
      ----------------- EXECUTE -----------------> ...  any number, answered in order
      <----------------- RESULT ------------------ ...
      ---------------- FINALIZE ----------------->
      <---------------- FINALIZED ----------------      then the stub exits

ATTACH, DETACH and FREE_OUTPUT may come at any time after LOAD; FREE_INPUT, NEED_OUTPUT, DETACHED and LOG likewise from
the stub. NEED_OUTPUT is answered with ATTACH or NO_OUTPUT; DETACH with DETACHED, or not at all while blocks of the
segment are in use. A stub that cannot load says FAILED and exits. Optional trailing fields do not exist: both ends come from one wheel.
"""

from enum import IntEnum
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple, Union

PROTOCOL_VERSION = 1
"""Compared in the handshake; a difference means a bundle that does not belong to this host."""

INLINE_BYTES = 8192
"""Tensors up to this size travel in the frame's tail: below it a copy costs less than a lease and its return."""

TAIL = 0
"""The segment number that means "in this frame's tail"."""


class HostMessage(IntEnum):
    """Kinds of messages that the host sends."""

    LOAD = 1
    INITIALIZE = 2
    ATTACH = 3
    DETACH = 4
    EXECUTE = 5
    FREE_OUTPUT = 6
    FINALIZE = 7
    NO_OUTPUT = 8


class StubMessage(IntEnum):
    """Kinds of messages that the stub sends."""

    HELLO = 33
    COMPLETED = 34
    INITIALIZED = 35
    FAILED = 36
    RESULT = 37
    FREE_INPUT = 38
    NEED_OUTPUT = 39
    LOG = 40
    FINALIZED = 41
    DETACHED = 42


class SegmentRole(IntEnum):
    """What a shared segment holds, which decides who allocates in it."""

    INPUT = 1
    """Written by the host; the stub gives blocks back with FREE_INPUT."""
    OUTPUT = 2
    """Written and allocated by the stub; the host gives blocks back with FREE_OUTPUT."""
    PROGRESS = 3
    """One 64-bit counter: executions begun. The host reads it only when the stub is dead."""


class TensorPlace(NamedTuple):
    """A tensor and where its bytes lie.

    Attributes:
        name: the tensor's name.
        datatype: wire name of its datatype.
        shape: its dimensions.
        segment: number of a shared segment, or :data:`TAIL`.
        offset: where the bytes begin, in the segment or the tail.
        nbytes: how many there are.
    """

    name: str
    datatype: str
    shape: "Sequence[int]"
    segment: int
    offset: int
    nbytes: int


class BlockPlace(NamedTuple):
    """A block of shared memory to give back: the segment's number and the block's offset name it uniquely."""

    segment: int
    offset: int


class RequestOptions(NamedTuple):
    """What most requests do not set; sent as None when everything is at its default."""

    id: str = ""
    correlation_id: "Union[int, str]" = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0
    parameters: "Optional[Dict[str, Union[bool, int, float, str]]]" = None


class ExecuteRequest(NamedTuple):
    """One request of an execution; ``requested_outputs`` None means every configured output."""

    inputs: "Sequence[TensorPlace]"
    requested_outputs: "Optional[Sequence[str]]"
    options: "Optional[RequestOptions]"


class Failure(NamedTuple):
    """An error as data: code of :class:`~pybackend_wire.errors.ErrorCode` and the text, traceback included."""

    code: int
    message: str


class RequestResult(NamedTuple):
    """One request's answer: either an error or outputs, each a :class:`TensorPlace` or a plain tuple of its fields."""

    error: "Optional[Failure]"
    outputs: "Sequence[Tuple[str, str, Sequence[int], int, int, int]]"
    parameters: "Optional[Dict[str, Union[bool, int, float, str]]]"


class Hello(NamedTuple):
    """The stub's first words, always in json."""

    kind: int
    protocol_version: int
    pid: int
    python: str
    numpy: str
    codecs: "List[str]"


class Load(NamedTuple):
    """Import the model and, if asked, let it complete its configuration."""

    kind: int
    codec: str
    model_file: str
    model_name: str
    instance_name: str
    version_directory: str
    auto_complete_config: "Optional[str]"


class Completed(NamedTuple):
    """The model is imported; ``config`` is what ``auto_complete_config`` returned, None if it was not called."""

    kind: int
    config: "Optional[Dict[str, Any]]"


class Initialize(NamedTuple):
    """Call ``initialize(args)`` and get ready to execute."""

    kind: int
    args: "Dict[str, str]"
    output_names: "List[str]"
    copy_inputs: bool


class Attach(NamedTuple):
    """Map a segment; its descriptor travels with the frame."""

    kind: int
    segment: int
    size_bytes: int
    role: int


class Execute(NamedTuple):
    """Run ``execute`` once on these requests."""

    kind: int
    requests: "Sequence[ExecuteRequest]"


class Result(NamedTuple):
    """The outcome of the oldest execution not yet answered; times are ``time.monotonic_ns()``."""

    kind: int
    began_ns: int
    infer_start_ns: int
    infer_end_ns: int
    done_ns: int
    results: "Sequence[RequestResult]"


class StubState(IntEnum):
    """Where a stub is in its life, as the host sees it."""

    STARTING = 0
    LOADING = 1
    LOADED = 2
    INITIALIZING = 3
    READY = 4
    FINALIZING = 5
    GONE = 6


_ALWAYS = frozenset({StubMessage.LOG, StubMessage.FREE_INPUT, StubMessage.NEED_OUTPUT, StubMessage.DETACHED})

LEGAL: "Dict[StubState, FrozenSet[int]]" = {
    StubState.STARTING: frozenset({StubMessage.HELLO, StubMessage.FAILED}),
    StubState.LOADING: _ALWAYS | {StubMessage.COMPLETED, StubMessage.FAILED},
    StubState.LOADED: _ALWAYS,
    StubState.INITIALIZING: _ALWAYS | {StubMessage.INITIALIZED, StubMessage.FAILED},
    StubState.READY: _ALWAYS | {StubMessage.RESULT},
    StubState.FINALIZING: _ALWAYS | {StubMessage.RESULT, StubMessage.FINALIZED},
    StubState.GONE: frozenset(),
}
"""What a stub may say in each state; anything else is a broken contract."""
