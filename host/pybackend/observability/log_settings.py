"""Which lines the server's log has, where they go, and how they look."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class LogFormat(StrEnum):
    """The form of a line."""

    DEFAULT = "default"
    """``LMMDD hh:mm:ss.uuuuuu``, then process, place and text."""
    ISO8601 = "ISO8601"
    """``YYYY-MM-DDThh:mm:ssZ L``, then process, place and text."""
    JSON = "json"
    """A JSON object."""
    SHORT = "short"
    """``hh:mm:ss``, the place if it is in a model, and the text: for people, not for programs."""


@dataclass(frozen=True)
class LogSettings:
    """The settings of the log.

    Attributes:
        verbose_level: 0 for none; from 1 on verbose lines are written, including those of models.
        format: the form of a line.
        file: the file that receives all lines; None for standard output and standard error.
        access: every answered request has a line.
        escapes: messages are quoted as in JSON, so that each record is one line.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: LogFormat = LogFormat.DEFAULT
    file: Path | None = None
    access: bool = False
    escapes: bool = True
