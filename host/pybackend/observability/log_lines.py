"""The settings of the log, and the forms of its lines: the reference's two, JSON, and a short one.

No text can end a line early or pass for another one.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

_LETTERS = {logging.ERROR: "E", logging.CRITICAL: "E", logging.WARNING: "W"}
_LEVELS = {logging.ERROR: "ERROR", logging.CRITICAL: "ERROR", logging.WARNING: "WARNING", logging.DEBUG: "VERBOSE"}

_WORDS = {logging.ERROR: "error: ", logging.CRITICAL: "error: ", logging.WARNING: "warning: "}

_FRAMES = "\n\nAt:\n"
"""Ends an error of a model's load in the reference's words; the frames of its traceback follow."""

_NOT_ON_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PARTS_OF_A_LINE = re.compile(r'["\]\\]')
_PLAIN_FILE = re.compile(r"[\w./ +-]*", re.ASCII)

Facts = Mapping[str, Any] | None

_INDENT = "    "
"""Before the further lines of a record on a terminal, so that none can look like a record."""


class LineFormatter(logging.Formatter):
    """``<stamp> <pid> <file>:<line>] "<message>"``, in UTC.

    With ``iso8601`` the stamp is ``YYYY-MM-DDThh:mm:ssZ L``, otherwise ``LMMDD hh:mm:ss.uuuuuu``. If it
    ``breaks_lines``, a message may have several lines, as people read them on a terminal; otherwise each record is
    one line, as programs read them. If it ``quotes``, the message, or its first line, is quoted as in JSON.
    """

    def __init__(self, *, iso8601: bool = False, breaks_lines: bool = False, quotes: bool = True) -> None:
        super().__init__()
        self._iso8601 = iso8601
        self._breaks_lines = breaks_lines
        self._quotes = quotes

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. Characters that could end the line or forge a part of it are escaped as in JSON."""
        if getattr(record, "as_it_is", False):
            return "\n".join(map(one_line, record.getMessage().split("\n")))
        message = self.message(record)
        file = record.filename  # for a model's line, the name sent by its process
        if not _PLAIN_FILE.fullmatch(file):
            file = one_line(_PARTS_OF_A_LINE.sub(_escaped, file))
        return self.line(record.created, record.levelno, record.process or 0, f"{file}:{record.lineno}", message)

    def message(self, record: logging.LogRecord) -> str:
        """The text of a record, and the traceback of its exception."""
        message = record.getMessage()
        return f"{message}\n{self.formatException(record.exc_info)}" if record.exc_info else message

    def line(self, created_s: float, level: int, pid: int, place: str, message: str, facts: Facts = None) -> str:
        """A line. The place is safe to print; ``facts`` are those of the message, and only JSON shows them."""
        now = time.gmtime(created_s)
        letter = _LETTERS.get(level, "I")
        if self._iso8601:
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', now)} {letter}"
        else:
            stamp = f"{letter}{time.strftime('%m%d %H:%M:%S', now)}.{int(created_s % 1 * 1e6):06d}"
        further: list[str] = []
        if self._breaks_lines or not self._quotes:
            message, *further = message.rstrip("\n").split("\n")
        text = one_line(json.dumps(message, ensure_ascii=False) if self._quotes else message)
        first = f"{stamp} {pid} {place}] {text}"
        return _with_further(first, further)


class JsonFormatter(LineFormatter):
    """One JSON object per line: ``time``, ``level``, ``pid``, ``file``, ``line``, ``message``.

    Lines of models and about them have ``instance``, ``model`` and ``version`` too, and where they are known
    ``request_id`` and ``trace_id``: see :func:`about_model`. Those of the access log have the facts of the request.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = self.message(record)
        instance = getattr(record, "instance", None)
        place = record.filename if instance is None else record.filename.removeprefix(f"{instance}/")
        fields: dict[str, Any] = {"file": place, "line": record.lineno}
        if instance is not None:
            fields["instance"] = instance
        fields |= {name: value for name, value in getattr(record, "about", {}).items() if value}
        return self.line(record.created, record.levelno, record.process or 0, "", message, fields)

    def line(self, created_s: float, level: int, pid: int, place: str, message: str, facts: Facts = None) -> str:
        """A line; see :meth:`LineFormatter.line`. The place is left out."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
        document = {
            "time": f"{stamp}.{int(created_s % 1 * 1e6):06d}Z",
            "level": _LEVELS.get(level, "INFO"),
            "pid": pid,
            **(facts or {}),
            "message": message,
        }
        return one_line(json.dumps(document, ensure_ascii=False))


def about_model(model: str, version: str) -> dict[str, Any]:
    """Passed as ``extra`` with a line about a version of a model."""
    return {"about": {"model": model, "version": version}}


class ShortFormatter(LineFormatter):
    """``hh:mm:ss <text>`` in local time, with the instance and place of lines of models. Texts keep their lines."""

    def __init__(self) -> None:
        super().__init__(breaks_lines=True, quotes=False)

    def message(self, record: logging.LogRecord) -> str:
        """The text of a record, without frames that a line of the model's process has shown before."""
        return super().message(record).partition(_FRAMES)[0]

    def line(self, created_s: float, level: int, pid: int, place: str, message: str, facts: Facts = None) -> str:
        """A line; see :meth:`LineFormatter.line`. The process is left out."""
        stamp = time.strftime("%H:%M:%S", time.localtime(created_s))
        instance, slash, file = place.partition("/")
        where = "" if not slash else f"{instance}: " if file.startswith("output:") else f"{instance} {file}: "
        first, *further = message.rstrip("\n").split("\n")
        head = f"{stamp} {_WORDS.get(level, '')}{where}{one_line(first)}"
        return _with_further(head, further)


def _with_further(first: str, further: list[str]) -> str:
    return "\n".join([first, *(f"{_INDENT}{one_line(line)}".rstrip() for line in further)])


def formatter_for(settings: LogSettings, *, breaks_lines: bool) -> LineFormatter:
    """The formatter that the settings ask for; ``breaks_lines`` for a terminal."""
    if settings.format is LogFormat.JSON:
        return JsonFormatter()
    if settings.format is LogFormat.SHORT:
        return ShortFormatter()
    return LineFormatter(
        iso8601=settings.format is LogFormat.ISO8601, breaks_lines=breaks_lines, quotes=settings.escapes
    )


def one_line(text: str) -> str:
    """Untrusted text, made safe for one line of a terminal.

    Control characters, line and paragraph separators and bidirectional marks are escaped as in JSON.
    """
    return _NOT_ON_A_LINE.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


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

    Verbose lines, including those of models, are written from level 1 on. With ``access``, every answered request has
    a line. If it ``escapes``, messages are quoted as in JSON, so that each record is one line.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: LogFormat = LogFormat.DEFAULT
    file: Path | None = None
    access: bool = False
    escapes: bool = True
