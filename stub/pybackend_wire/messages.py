"""What host and stub say to each other: two families of messages. :mod:`pybackend_wire.states` says which is legal when.

A message is a flat sequence whose first element is its kind. It holds plain values only (None, bool, int, float, str,
lists, dicts with str keys), so that msgpack and json carry it alike. Tensor bytes never stand in a message: a
:class:`TensorPlace` says where they lie.

    host                                        stub
      <------------------ HELLO ------------------      always json: settles the codec
      ------------------- LOAD ------------------>      import model.py, auto_complete_config
      <---------------- COMPLETED ----------------
      ---------------- INITIALIZE --------------->
      <--------------- INITIALIZED ---------------
      ----------------- EXECUTE -----------------> ...  any number
      <----------------- RESULT ------------------ ...  one each, or HANDED_BACK if it was not begun
      ---------------- FINALIZE ----------------->
      <---------------- FINALIZED ----------------      then the stub exits

ATTACH, DETACH and FREE_OUTPUT may come at any time after LOAD; FREE_INPUT, NEED_OUTPUT and DETACHED likewise from the
stub. NEED_OUTPUT is answered with ATTACH or NO_OUTPUT; DETACH with DETACHED, or not at all while blocks of the
segment are in use. A stub that cannot load says FAILED and exits. Optional trailing fields do not exist: both ends come from one wheel.

A RESULT holds None for each request that is answered otherwise: by RESPOND, any number of times, until one is final; or
not yet, if a RESCHEDULED came before. Such a request is executed once more, as part of another EXECUTE.
From INITIALIZE to FINALIZED a model may ask for things itself. Each CALL (run another model) is answered with REPLY
until one is final, each other question with one ANSWER; the stub numbers them. CANCEL, FLOW and PROBE may come whenever
the model is ready; PROBE is answered with READINESS.
"""

from enum import IntEnum
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

PROTOCOL_VERSION = 4
"""Compared in the handshake; a difference means a bundle that does not belong to this host."""

INLINE_BYTES = 8192
"""Tensors up to this size travel in the frame's tail: below it a copy costs less than a lease and its return."""

TAIL = 0
"""The segment number that means "in this frame's tail"."""

ATTENDED_FROM = 16
"""The number of the execution from which on a stub hears nudges while a model runs; before, nothing is sent ahead to it."""


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
    CANCEL = 9
    FLOW = 10
    REPLY = 11
    ANSWER = 12
    PROBE = 13


class StubMessage(IntEnum):
    """Kinds of messages that the stub sends."""

    HELLO = 33
    COMPLETED = 34
    INITIALIZED = 35
    FAILED = 36
    RESULT = 37
    FREE_INPUT = 38
    NEED_OUTPUT = 39
    FINALIZED = 41
    DETACHED = 42
    RESPOND = 43
    HANDED_BACK = 44
    CALL = 45
    CANCEL_CALL = 46
    READINESS = 47
    NEW_FAMILY = 48
    NEW_METRIC = 49
    CHANGE_METRIC = 50
    READ_METRIC = 51
    DROP_METRIC = 52
    LOAD_MODEL = 53
    UNLOAD_MODEL = 54
    IS_MODEL_READY = 55
    RESCHEDULED = 56


class MetricKind(IntEnum):
    """What a family of custom metrics measures."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricChange(IntEnum):
    """What CHANGE_METRIC does with its value."""

    INCREMENT = 0
    SET = 1
    OBSERVE = 2


class SegmentRole(IntEnum):
    """What a shared segment holds, which decides who allocates in it."""

    INPUT = 1
    """Written by the host; the stub gives blocks back with FREE_INPUT."""
    OUTPUT = 2
    """Written and allocated by the stub; the host gives blocks back with FREE_OUTPUT."""
    PROGRESS = 3
    """One 64-bit number: the execution begun last. The host reads it only when the stub is dead."""


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
    """The stub's first words, always in json.

    Attributes:
        protocol_version: of this module.
        pid: the process.
        python: version of the interpreter.
        numpy: version of numpy.
        codecs: what LOAD may choose from.
        confined: by layer of the sandbox, why it is not in force, ``""`` where it is; empty if nothing was asked for.
    """

    kind: int
    protocol_version: int
    pid: int
    python: str
    numpy: str
    codecs: "List[str]"
    confined: "Dict[str, str]"


class DebuggerPoint(NamedTuple):
    """Where a debugger may attach, and whether the model is imported only when one has."""

    port: int
    waits: bool


class Load(NamedTuple):
    """Import the model and, if asked, let it complete its configuration.

    Attributes:
        codec: what both sides use from now on.
        model_file: to import.
        model_name: the model.
        instance_name: of this stub.
        version_directory: of the model's data.
        auto_complete_config: the configuration to complete, None if that is not wanted.
        of_backend: the file is that of a Python-based backend.
        debugger: None where nobody debugs.
    """

    kind: int
    codec: str
    model_file: str
    model_name: str
    instance_name: str
    version_directory: str
    auto_complete_config: "Optional[str]"
    of_backend: bool
    debugger: "Optional[DebuggerPoint]"


class Completed(NamedTuple):
    """The model is imported; ``config`` is what ``auto_complete_config`` returned, None if it was not called."""

    kind: int
    config: "Optional[Dict[str, Any]]"


class Initialize(NamedTuple):
    """Call ``initialize(args)`` and get ready to execute.

    ``decoupled`` models answer any number of times. ``concurrency`` is how many executions of an ``async def execute``
    may overlap where each answers once. ``reschedules``: the model may have requests executed once more.
    """

    kind: int
    args: "Dict[str, str]"
    output_names: "List[str]"
    copy_inputs: bool
    decoupled: bool
    concurrency: int
    reschedules: bool


class Attach(NamedTuple):
    """Map a segment; its descriptor travels with the frame."""

    kind: int
    segment: int
    size_bytes: int
    role: int


class Execute(NamedTuple):
    """Run ``execute`` once on these requests; ``execution`` counts from 1 in each stub's life."""

    kind: int
    execution: int
    requests: "Sequence[ExecuteRequest]"


class Result(NamedTuple):
    """The outcome of an execution; times are ``time.monotonic_ns()``. None for a request that RESPOND answers."""

    kind: int
    execution: int
    began_ns: int
    infer_start_ns: int
    infer_end_ns: int
    done_ns: int
    results: "Sequence[Optional[RequestResult]]"


class Rescheduled(NamedTuple):
    """Places of requests that the model wants to execute once more; sent before the RESULT, which holds None for them."""

    kind: int
    execution: int
    requests: "Sequence[int]"


class Respond(NamedTuple):
    """One of the responses to a request whose RESULT holds, or will hold, None. ``result`` None: only the final flag.

    ``request`` is its place in the execution.
    """

    kind: int
    execution: int
    request: int
    final: bool
    result: "Optional[RequestResult]"


class HandedBack(NamedTuple):
    """Executions that were not begun and will not be: the stub is busy for longer than they should wait.

    What is numbered right behind them comes back too, so that it does not overtake them; once the host knows, it leaves a
    number out.
    """

    kind: int
    executions: "Sequence[int]"


class Cancel(NamedTuple):
    """Nobody waits any more for the responses to a request."""

    kind: int
    execution: int
    request: int


class Flow(NamedTuple):
    """Whoever takes a request's responses cannot take more now (``paused``), or can again."""

    kind: int
    execution: int
    request: int
    paused: bool


class Call(NamedTuple):
    """Run a model.

    Attributes:
        call: the stub's number for it; questions count likewise.
        model_name: the model to run.
        model_version: -1 lets the host choose.
        decoupled: whether the caller takes any number of responses.
        execution: the execution that cannot end before the call has, 0 if that is not known.
        inputs: in output memory, or in the tail.
        requested_outputs: none means all.
        options: see :class:`RequestOptions`.
    """

    kind: int
    call: int
    model_name: str
    model_version: int
    decoupled: bool
    execution: int
    inputs: "Sequence[TensorPlace]"
    requested_outputs: "Sequence[str]"
    options: "Optional[RequestOptions]"


class Reply(NamedTuple):
    """A response to a CALL, its outputs in input memory or in the tail; ``result`` None: only the final flag."""

    kind: int
    call: int
    final: bool
    result: "Optional[RequestResult]"


class CancelCall(NamedTuple):
    """The caller wants no more responses; the final one still comes."""

    kind: int
    call: int


class Answer(NamedTuple):
    """The answer to a question: a value, or why there is none."""

    kind: int
    call: int
    failure: "Optional[Failure]"
    value: "Union[bool, int, float, None]"


class NewFamily(NamedTuple):
    """Register a family of metrics; answered with its handle."""

    kind: int
    call: int
    name: str
    description: str
    metric_kind: int


class NewMetric(NamedTuple):
    """Register a series of a family; answered with its handle."""

    kind: int
    call: int
    family: int
    labels: "Dict[str, str]"
    buckets: "Optional[Sequence[float]]"


class ChangeMetric(NamedTuple):
    """Change a series; not answered: what is not allowed is refused in the stub, which knows the metric's kind.

    ``value`` is ``"inf"``, ``"-inf"`` or ``"nan"`` where it is no finite number: json has none of them.
    """

    kind: int
    metric: int
    change: int
    value: "Union[float, str]"


class ReadMetric(NamedTuple):
    """Ask for the value of a series."""

    kind: int
    call: int
    metric: int


class DropMetric(NamedTuple):
    """The model let go of a series or a family; not answered."""

    kind: int
    handle: int


class LoadModel(NamedTuple):
    """Load or reload a model; ``files`` maps paths to TensorPlace of type UINT8. Answered when the model is ready."""

    kind: int
    call: int
    model_name: str
    config: str
    files: "Sequence[TensorPlace]"


class UnloadModel(NamedTuple):
    """Begin to unload a model; answered at once."""

    kind: int
    call: int
    model_name: str
    unload_dependents: bool


class IsModelReady(NamedTuple):
    """Ask whether a model takes requests; ``""`` is any version."""

    kind: int
    call: int
    model_name: str
    model_version: str


class Readiness(NamedTuple):
    """What ``is_ready()`` said; ``reason`` why it is not, for the log."""

    kind: int
    ready: bool
    reason: str
