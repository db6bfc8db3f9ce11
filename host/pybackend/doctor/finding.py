"""What an examination finds out about one layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a layer is; WARN: a server works, and something is weaker or slower than it could be."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One row.

    Attributes:
        layer: what was looked at.
        status: how it is.
        found: what there is, in a few words.
        advice: what to do about it, empty if nothing.
    """

    layer: str
    status: Status
    found: str
    advice: str = ""

    def to_document(self) -> dict[str, str]:
        """For programs."""
        return asdict(self)


def ok(layer: str, found: str) -> Finding:
    """All is as it should be."""
    return Finding(layer, Status.OK, found)


def warn(layer: str, found: str, advice: str) -> Finding:
    """It would be better otherwise."""
    return Finding(layer, Status.WARN, found, advice)


def fail(layer: str, found: str, advice: str) -> Finding:
    """No server can work so."""
    return Finding(layer, Status.FAIL, found, advice)
