"""The result of checking one layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """State of a layer. WARN: a server works, but is weaker or slower than possible."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One row."""

    layer: str
    status: Status
    found: str  # the facts, in a few words
    advice: str = ""  # the remedy, empty if none is needed


def ok(layer: str, found: str) -> Finding:
    """A layer without problems."""
    return Finding(layer, Status.OK, found)


def warn(layer: str, found: str, advice: str) -> Finding:
    """A layer that limits a server."""
    return Finding(layer, Status.WARN, found, advice)


def fail(layer: str, found: str, advice: str) -> Finding:
    """A layer that prevents a server from working."""
    return Finding(layer, Status.FAIL, found, advice)


def not_in_force(missing: Mapping[str, str]) -> list[str]:
    """The advice about layers of the sandbox that a model would lack, a sentence for each."""
    return [f"Layer '{layer}' is not in force: {reason}." for layer, reason in missing.items()]
