"""Answers and refusals of the server, counted for each way by which requests come in."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from pybackend.errors import ErrorCode, InferenceError, NotServingError, UnknownModelError


class AnswerCounts:
    """The counts of one protocol."""

    __slots__ = ("_ok_code", "_others", "ok")

    def __init__(self, ok_code: str) -> None:
        self._ok_code = ok_code
        self._others: Counter[str] = Counter()
        self.ok = 0  # answers with that code; the hot path adds to it

    def add(self, code: str, number: int = 1) -> None:
        """Count answers; codes are the protocol's, so there are few."""
        if code == self._ok_code:
            self.ok += number
        else:
            self._others[code] += number

    def counts(self) -> Iterator[tuple[str, int]]:
        """The number of answers by code, success first."""
        yield self._ok_code, self.ok
        yield from sorted(self._others.items())


log = logging.getLogger(__name__)


class RefusalReason(StrEnum):
    """The reason for a refusal, used as the ``reason`` label of the counter."""

    UNKNOWN_MODEL = "unknown_model"
    NOT_SERVING = "not_serving"
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    MALFORMED = "malformed"
    UNKNOWN_ROUTE = "unknown_route"
    DENIED = "denied"


# All other codes mean an invalid request: the reference answers a mistake in the JSON with its code for internal
# errors.
_BY_CODE = {
    ErrorCode.UNSUPPORTED: RefusalReason.UNSUPPORTED,
    ErrorCode.UNAVAILABLE: RefusalReason.UNAVAILABLE,
}


class RefusalLabels(NamedTuple):
    """The labels of one count."""

    protocol: str
    model: str  # the model's full name; ``""`` if there is no such model, or the request does not name one
    reason: RefusalReason


class Refusals(ABC):
    """Counts refused requests."""

    def add_error(self, protocol: str, model: str, error: InferenceError, sender: str = "") -> None:
        """Count an inference request that was answered with this error.

        Requests that their own sender has cancelled are not counted. ``sender`` is an address or a name, for the log.
        """
        if error.code is not ErrorCode.CANCELLED:
            self.add(protocol, reason_of(error), error.message, model, sender)

    @abstractmethod
    def add(self, protocol: str, reason: RefusalReason, message: str, model: str = "", sender: str = "") -> None:
        """Count a request that was answered with this message; the other arguments are those of :meth:`add_error`."""


class RefusalCounts(Refusals):
    """The counts of one server.

    ``full_name`` returns ``""`` for names of no model, which would let clients make any number of counts.
    """

    def __init__(self, full_name: Callable[[str], str]) -> None:
        self._full_name = full_name
        self.counts: Counter[RefusalLabels] = Counter()  # number of refused requests

    def add(self, protocol: str, reason: RefusalReason, message: str, model: str = "", sender: str = "") -> None:
        self.counts[RefusalLabels(protocol, self._full_name(model) if model else "", reason)] += 1
        log.debug(
            "Refused a request%s over %s%s (%s): %s",
            f" for model '{model}'" if model else "",
            protocol,
            f" from {sender}" if sender else "",
            reason.value,
            message,
        )


def reason_of(error: InferenceError) -> RefusalReason:
    """The reason for which a request was refused."""
    if isinstance(error, UnknownModelError):
        return RefusalReason.UNKNOWN_MODEL
    if isinstance(error, NotServingError):
        return RefusalReason.NOT_SERVING
    return _BY_CODE.get(error.code, RefusalReason.INVALID)
