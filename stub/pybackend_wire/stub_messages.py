"""Messages from a stub to its host; see :mod:`pybackend_wire.messages`."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from pybackend_wire.messages import (
    BlockPlace,
    Code,
    Failure,
    MetricChangeNumber,
    MetricKindNumber,
    MetricValue,
    Natural,
    RequestOptions,
    RequestResult,
    Signed,
    StubMessage,
    TensorPlace,
    by_kind,
)

Blocks = List[BlockPlace]

Document = Optional[Dict[str, Any]]
"""A model's configuration."""


class Hello(NamedTuple):
    """The stub's first message, always in json."""

    protocol_version: int
    pid: int
    python: str
    numpy: str
    codecs: List[str]
    # by layer of the sandbox, the reason why it is not in force, ``""`` if it is; empty without a sandbox
    confined: Dict[str, str]


class Completed(NamedTuple):
    """The model is imported; ``config`` is the result of ``auto_complete_config``, None if it was not called."""

    config: Document


class Initialized(NamedTuple):
    """The model is ready to execute."""

    has_is_ready: bool


class Failed(NamedTuple):
    """The model could not be loaded; the stub exits."""

    phase: str
    failure: Failure


class Result(NamedTuple):
    """The outcome of an execution; times are ``time.monotonic_ns()``. None stands for a request that RESPOND answers.

    A stub makes it with :func:`encoded_result` from plain sequences: it is the one message that every execution needs.
    """

    execution: Natural
    began_ns: Natural
    infer_start_ns: Natural
    infer_end_ns: Natural
    done_ns: Natural
    results: List[Optional[RequestResult]]


_RESULT = int(StubMessage.RESULT)


def encoded_result(
    execution: int,
    began_ns: int,
    infer_start_ns: int,
    infer_end_ns: int,
    done_ns: int,
    results: Sequence[Optional[Sequence[Any]]],
) -> Tuple[Any, ...]:
    """Encode a :class:`Result` for the wire."""
    return (_RESULT, execution, began_ns, infer_start_ns, infer_end_ns, done_ns, results)


class Rescheduled(NamedTuple):
    """Indexes of requests that the model reschedules; sent before the RESULT, which holds None for them."""

    execution: Natural
    requests: List[Natural]


class DroppedOutput(NamedTuple):
    """The model has returned an output whose name is not configured; sent once for each name."""

    name: str


class Respond(NamedTuple):
    """One response to a request whose RESULT holds, or will hold, None. ``result`` None: the final flag alone.

    ``request`` is its index in the execution.
    """

    execution: Natural
    request: Natural
    final: bool
    result: Optional[RequestResult]


class Wrote(NamedTuple):
    """The model is about to write, replace or remove a file below the directory that LOAD names."""

    path: str  # relative to it


class HandedBack(NamedTuple):
    """Executions that have not begun and will not: the stub is busy for longer than they should wait.

    The execution with the next number comes back too, so that it does not overtake them; once the host knows, it skips
    a number.
    """

    executions: List[Natural]


class FreeInput(NamedTuple):
    """Input blocks that the model has released."""

    blocks: Blocks


class NeedOutput(NamedTuple):
    """The stub has no room for an output of this size, and waits for memory."""

    nbytes: Natural


class Detached(NamedTuple):
    """The stub has unmapped a segment."""

    segment: Natural


class Call(NamedTuple):
    """Run a model."""

    call: Natural  # the stub's number for it; questions share the numbering
    model_name: str
    model_version: Signed  # -1 lets the host choose
    decoupled: bool
    execution: Natural  # the execution that cannot end before the call does, 0 if that is not known
    inputs: List[TensorPlace]  # in output memory, or in the tail
    requested_outputs: List[str]  # empty for all
    options: Optional[RequestOptions]
    # the instances of other models in the process that wait for it, too, because they serve a call of this execution
    held: List[str]


class LocalCall(NamedTuple):
    """Another model in the process was run, without the host; times are ``time.monotonic_ns()``."""

    instance: str  # that ran
    began_ns: Natural
    infer_start_ns: Natural
    infer_end_ns: Natural
    done_ns: Natural
    batch_size: Natural
    error: Optional[Code]  # the code of its error; None for a result
    of_step: bool  # it was not called by a model, but ran as a step of an ensemble
    new_outputs: List[TensorPlace]  # outputs with a layout that it has not returned before, without their bytes


class Occupied(NamedTuple):
    """Whether another model in the process runs this one, and for so long that executions must not wait for it."""

    occupied: bool


class Followed(NamedTuple):
    """The steps of an ensemble that have followed an execution, see THEN; sent before its RESULT.

    The results have those outputs alone that the host still needs. After one with an error no other follows.
    """

    execution: Natural
    left_ns: Natural  # when the first step was over
    new_outputs: List[TensorPlace]  # outputs of the first step, as in :class:`LocalCall`
    results: List[RequestResult]


class CancelCall(NamedTuple):
    """The caller wants no more responses; the final one still comes."""

    call: Natural


class NewFamily(NamedTuple):
    """Register a family of metrics; the answer is its handle."""

    call: Natural
    name: str
    description: str
    metric_kind: MetricKindNumber


class NewMetric(NamedTuple):
    """Register a series of a family; the answer is its handle."""

    call: Natural
    family: Natural
    labels: Dict[str, str]
    buckets: Optional[List[float]]


class ChangeMetric(NamedTuple):
    """Change a series. There is no answer: the stub knows the metric's kind and refuses unsupported changes."""

    metric: Natural
    change: MetricChangeNumber
    value: MetricValue


class ReadMetric(NamedTuple):
    """Ask for the value of a series."""

    call: Natural
    metric: Natural


class DropMetric(NamedTuple):
    """The model has released a series or a family; there is no answer."""

    handle: Natural


class LoadModel(NamedTuple):
    """Load or reload a model; each file is a UINT8 tensor named by its path. Answered when the model is ready."""

    call: Natural
    model_name: str
    config: str
    files: List[TensorPlace]


class UnloadModel(NamedTuple):
    """Begin to unload a model; the answer comes at once."""

    call: Natural
    model_name: str
    unload_dependents: bool


class IsModelReady(NamedTuple):
    """Ask whether a model accepts requests; ``""`` is any version."""

    call: Natural
    model_name: str
    model_version: str


class Readiness(NamedTuple):
    """The result of ``is_ready()``; ``reason`` is for the log if it is False."""

    ready: bool
    reason: str


class Finalized(NamedTuple):
    """``finalize`` has returned, or raised ``failure``; the stub exits."""

    failure: Optional[Failure]


Question = Union[NewFamily, NewMetric, ChangeMetric, ReadMetric, DropMetric, LoadModel, UnloadModel, IsModelReady]
"""A model's questions to its host, apart from calls of other models."""

FromStub = Union[
    Hello,
    Completed,
    Initialized,
    Failed,
    Result,
    Rescheduled,
    DroppedOutput,
    Wrote,
    Respond,
    HandedBack,
    FreeInput,
    NeedOutput,
    Detached,
    Call,
    LocalCall,
    Occupied,
    Followed,
    CancelCall,
    Readiness,
    Finalized,
    Question,
]

STUB_MESSAGES = by_kind(StubMessage, FromStub)
"""The type of each kind."""

_KINDS = {message: int(kind) for kind, message in STUB_MESSAGES.items()}


def encoded(message: FromStub) -> Tuple[Any, ...]:
    """Encode a message for the wire."""
    return (_KINDS[type(message)], *message)
