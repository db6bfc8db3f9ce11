"""The protocol between host and stub: kinds of messages, places of tensors, and parts shared by both directions.

The messages are defined once, in :mod:`pybackend_wire.host_messages` and :mod:`pybackend_wire.stub_messages`; both
sides create and read them as those tuples. :data:`LEGAL` says which message is legal in which state.

On the wire a message is a flat sequence: its kind, then its fields. It holds plain values only (None, bool, int, float,
str, lists, dicts with str keys), so that msgpack and json can both encode it. A message never contains tensor bytes: a
:class:`TensorPlace` says where they are.

    host                                        stub
      <------------------ HELLO ------------------      always json: settles the codec
      ------------------- LOAD ------------------>      import model.py, auto_complete_config
      <---------------- COMPLETED ----------------
      ---------------- INITIALIZE --------------->
      <--------------- INITIALIZED ---------------
      ----------------- EXECUTE -----------------> ...  any number
      <----------------- RESULT ------------------ ...  one each, or HANDED_BACK if it has not begun
      ---------------- FINALIZE ----------------->
      <---------------- FINALIZED ----------------      then the stub exits

ATTACH, DETACH and FREE_OUTPUT may come at any time after LOAD, as may FREE_INPUT, NEED_OUTPUT, DETACHED and WROTE from
the stub. The answer to NEED_OUTPUT is ATTACH or NO_OUTPUT. The answer to DETACH is DETACHED; there is none while blocks
of the segment are in use. A stub that cannot load the model sends FAILED and exits. There are no optional trailing
fields: both ends come from one wheel.

A RESULT holds None for each request that is answered in another way: by RESPOND, any number of times until one is
final, or later, if a RESCHEDULED came before. A rescheduled request is executed again, as part of another EXECUTE. From
INITIALIZE to FINALIZED a model may send questions. The stub numbers them. The host answers each CALL (run another
model) with REPLY until one is final, and every other question with one ANSWER. CANCEL, FLOW, PROBE and COLLECT may come
whenever the model is ready; the answer to PROBE is READINESS.

In the process of a group, the socket that the process was started with carries JOIN in place of LOAD: each brings the
socket of another model, with which everything above happens in a separate thread.

There OFFER says whether other models in the process may run this one, LOCAL_CALL that one has done so, and OCCUPIED
that one is at it, so that what the host has sent goes back. THEN comes before an EXECUTE, and names the steps of an
ensemble that may follow it in the process; before the RESULT comes FOLLOWED, with those that did.

Type names appear in annotations as text. The host, which does not trust a stub, derives from them the types for
checking a stub's messages, and adds the bounds of :data:`Natural` and the like.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Union, get_args

Natural = int
"""A whole number from 0 to 2**63 - 1."""

Signed = int
"""A whole number from -2**63 to 2**63 - 1."""

Unsigned = int
"""A whole number from 0 to 2**64 - 1."""

Unsigned32 = int
"""A whole number from 0 to 2**32 - 1."""

Code = int
"""A number of :class:`~pybackend_wire.errors.ErrorCode`."""

MOST_DIMENSIONS = 64
"""Most dimensions of a tensor, which is numpy's limit too: multiplying all that fit into a frame would take minutes."""

Shape = Sequence[Natural]
"""Up to :data:`MOST_DIMENSIONS` dimensions."""

ParameterValue = Union[bool, Signed, float, str]

MetricKindNumber = int
"""A number of :class:`MetricKind`."""

MetricChangeNumber = int
"""A number of :class:`MetricChange`."""

MetricValue = Union[float, str]
"""A finite number, or ``"inf"``, ``"-inf"`` or ``"nan"``, which json cannot express as numbers."""

PROTOCOL_VERSION = 13
"""Compared in the handshake; a mismatch means that the bundle does not belong to this host."""

INLINE_BYTES = 8192
"""Tensors up to this size travel in the frame's tail: for these a copy costs less than a lease and its release."""

STREAM_WINDOW = 128
"""Most responses of a stream, beside the last one, that the host has not taken yet: then the model waits in ``send``.
"""

TAIL = 0
"""The segment number for "in this frame's tail"."""

ATTENDED_FROM = 16
"""From this execution on a stub receives nudges while a model runs; before it, the host sends nothing ahead."""

BEGUN_WORD = 0
"""The 64-bit word of a PROGRESS segment into which the stub writes the number of the execution that it began last."""

STACKS_OFFSET, STACKS_BYTES = 4096, 64 * 1024
"""Where the stub writes its stacks in a PROGRESS segment, on a signal: in the form of ``faulthandler``, and then
STACK_END."""

STACK_END = b"\nThat is all.\n"

NUDGE = b"\0"
"""Written to a stub's pipe: read what was sent, send the answers that were kept, hand back what has not begun."""

NUDGE_TO_ANSWER = b"\1"
"""The same for the answers alone: what has not begun may go on waiting."""


WANTS_LINE, GIVES_BACK = b"\5", b"\4"
"""Among the text that a stub writes into its TERMINAL: it waits for a line; it needs the terminal no longer."""

END_OF_INPUT = b"\4"
"""In place of a line: the user ended the input."""


class HostMessage(IntEnum):
    """Kinds of messages from the host."""

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
    COLLECT = 14
    JOIN = 15
    OFFER = 16
    THEN = 17


class StubMessage(IntEnum):
    """Kinds of messages from the stub."""

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
    DROPPED_OUTPUT = 57
    LOCAL_CALL = 58
    OCCUPIED = 59
    FOLLOWED = 60
    WROTE = 61


def by_kind(kinds: Any, messages: Any) -> Dict[int, Any]:
    """The types of a union of messages by their kinds, which have the same names in another spelling."""
    return {kinds[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.__name__).upper()]: each for each in get_args(messages)}


class MetricKind(IntEnum):
    """Kinds of families of custom metrics."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricChange(IntEnum):
    """Operations of CHANGE_METRIC."""

    INCREMENT = 0
    SET = 1
    OBSERVE = 2


class SegmentRole(IntEnum):
    """Use of a shared segment; it determines which side allocates in it."""

    INPUT = 1
    """Written by the host; the stub gives blocks back with FREE_INPUT."""
    OUTPUT = 2
    """Written and allocated by the stub; the host gives blocks back with FREE_OUTPUT."""
    PROGRESS = 3
    """Some 64-bit numbers, and the stub's stacks when the host asks for them."""
    REGION = 4
    """Shared memory of a client, which may change and shrink at any time. The stub uses the descriptor itself."""
    TERMINAL = 5
    """No memory: a socket to the terminal of the server, for the debugger of a model that stops at a breakpoint."""


class TensorPlace(NamedTuple):
    """A tensor and the location of its bytes."""

    name: str
    datatype: str
    shape: Shape  # its dimensions, at most :data:`MOST_DIMENSIONS`
    segment: Natural  # number of a shared segment, or :data:`TAIL`
    offset: Natural  # first byte, in the segment or the tail
    nbytes: Natural


class BlockPlace(NamedTuple):
    """A block of shared memory to free, identified by its segment's number and its offset."""

    segment: Natural
    offset: Natural


class RequestOptions(NamedTuple):
    """Rarely used options of a request; None on the wire if all have their defaults."""

    id: str = ""
    correlation_id: Union[Unsigned, str] = 0
    flags: Unsigned32 = 0
    priority: Natural = 0  # 1 is the highest
    timeout_us: Unsigned = 0
    parameters: Optional[Dict[str, ParameterValue]] = None
    trace: Natural = 0  # number of the trace to which it belongs, 0 for none
    trace_context: str = ""  # how other services continue the trace, as a JSON object. Only the host sends it.


class Failure(NamedTuple):
    """An error as data: a code of :class:`~pybackend_wire.errors.ErrorCode`, and the text including the traceback."""

    code: Code
    message: str


Outputs = List[TensorPlace]
"""The outputs of a response."""


class RequestResult(NamedTuple):
    """One request's answer: an error, or outputs and parameters."""

    error: Optional[Failure]
    outputs: Outputs
    parameters: Optional[Dict[str, ParameterValue]]


class StubState(IntEnum):
    """The state of a stub, as the host sees it."""

    STARTING = 0
    LOADING = 1
    LOADED = 2
    INITIALIZING = 3
    READY = 4
    FINALIZING = 5
    GONE = 6


_ALWAYS = frozenset(
    {
        StubMessage.FREE_INPUT,
        StubMessage.NEED_OUTPUT,
        StubMessage.DETACHED,
        StubMessage.DROP_METRIC,
        StubMessage.WROTE,
    }
)
_QUESTIONS = frozenset(
    {
        StubMessage.NEW_FAMILY,
        StubMessage.NEW_METRIC,
        StubMessage.CHANGE_METRIC,
        StubMessage.READ_METRIC,
        StubMessage.LOAD_MODEL,
        StubMessage.UNLOAD_MODEL,
        StubMessage.IS_MODEL_READY,
    }
)
_SERVING = _ALWAYS | _QUESTIONS
_SERVING |= {
    StubMessage.RESULT,
    StubMessage.RESPOND,
    StubMessage.RESCHEDULED,
    StubMessage.DROPPED_OUTPUT,
    StubMessage.HANDED_BACK,
    StubMessage.CALL,
    StubMessage.LOCAL_CALL,
    StubMessage.OCCUPIED,
    StubMessage.FOLLOWED,
    StubMessage.CANCEL_CALL,
    StubMessage.READINESS,
}

LEGAL: Dict[StubState, FrozenSet[int]] = {
    StubState.STARTING: frozenset({StubMessage.HELLO, StubMessage.FAILED}),
    StubState.LOADING: _ALWAYS | {StubMessage.COMPLETED, StubMessage.FAILED},
    StubState.LOADED: _ALWAYS,
    StubState.INITIALIZING: _ALWAYS | _QUESTIONS | {StubMessage.INITIALIZED, StubMessage.FAILED},
    StubState.READY: _SERVING,
    StubState.FINALIZING: _SERVING | {StubMessage.FINALIZED},
    StubState.GONE: frozenset(),
}
"""The messages that a stub may send in each state; any other message breaks the protocol."""
