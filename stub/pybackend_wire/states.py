"""The life of a stub as its host sees it, and the messages that are legal in each state."""

from enum import IntEnum
from typing import Dict, FrozenSet

from pybackend_wire.messages import StubMessage


class StubState(IntEnum):
    """The state of a stub, as the host sees it."""

    STARTING = 0
    LOADING = 1
    LOADED = 2
    INITIALIZING = 3
    READY = 4
    FINALIZING = 5
    GONE = 6


_ALWAYS = frozenset({StubMessage.FREE_INPUT, StubMessage.NEED_OUTPUT, StubMessage.DETACHED, StubMessage.DROP_METRIC})
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
    StubMessage.CANCEL_CALL,
    StubMessage.READINESS,
}

LEGAL: "Dict[StubState, FrozenSet[int]]" = {
    StubState.STARTING: frozenset({StubMessage.HELLO, StubMessage.FAILED}),
    StubState.LOADING: _ALWAYS | {StubMessage.COMPLETED, StubMessage.FAILED},
    StubState.LOADED: _ALWAYS,
    StubState.INITIALIZING: _ALWAYS | _QUESTIONS | {StubMessage.INITIALIZED, StubMessage.FAILED},
    StubState.READY: _SERVING,
    StubState.FINALIZING: _SERVING | {StubMessage.FINALIZED},
    StubState.GONE: frozenset(),
}
"""The messages that a stub may send in each state; any other message breaks the protocol."""
