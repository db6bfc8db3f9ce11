"""The server's log, in the reference's line format; informational lines go to stdout, all others to stderr."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from pybackend.observability.log_stream import LogStream

_ROOT = "pybackend"
_MODEL = logging.getLogger("pybackend.models")

VERBOSE = logging.DEBUG

AS_IT_IS = {"as_it_is": True}
"""Passed as ``extra`` with text to copy from the terminal: it is written without stamp and quotes."""

_LETTERS = {logging.ERROR: "E", logging.CRITICAL: "E", logging.WARNING: "W"}

_NOT_ON_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_PARTS_OF_A_LINE = re.compile(r'["\]\\]')
_PLAIN_FILE = re.compile(r"[\w./ +-]*", re.ASCII)

_STDERR = 2

_FLUSH_S = 1.0
"""How long shutdown waits for the log's readers."""

# The numbers of pb_utils.Logger.LogLevel: INFO, WARNING, ERROR, VERBOSE.
_MODEL_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, VERBOSE)


@dataclass(frozen=True)
class LogSettings:
    """Which lines are written.

    Attributes:
        info: informational lines.
        warning: warnings.
        error: errors.
        verbose_level: 0 for none; from 1 on verbose lines are written, including those of models.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0


_INDENT = "    "
"""Before the further lines of a record on a terminal, so that none can look like a record."""


class LineFormatter(logging.Formatter):
    """``LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] "<message>"``, in UTC.

    Args:
        breaks_lines: whether a message may have several lines, as people read them on a terminal. Otherwise each record
            is one line, as programs read them.
    """

    def __init__(self, *, breaks_lines: bool = False) -> None:
        super().__init__()
        self._breaks_lines = breaks_lines

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. Characters that could end the line or forge a part of it are escaped as in JSON."""
        if getattr(record, "as_it_is", False):
            return "\n".join(map(one_line, record.getMessage().split("\n")))
        now = time.gmtime(record.created)
        stamp = time.strftime("%m%d %H:%M:%S", now)
        micros = int(record.created % 1 * 1e6)
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        further: list[str] = []
        if self._breaks_lines:
            message, *further = message.rstrip("\n").split("\n")
        letter = _LETTERS.get(record.levelno, "I")
        quoted = one_line(json.dumps(message, ensure_ascii=False))
        file = record.filename  # for a model's line, the name sent by its process
        if not _PLAIN_FILE.fullmatch(file):
            file = one_line(_PARTS_OF_A_LINE.sub(_escaped, file))
        first = f"{letter}{stamp}.{micros:06d} {record.process} {file}:{record.lineno}] {quoted}"
        return "\n".join([first, *(f"{_INDENT}{one_line(line)}".rstrip() for line in further)])


def one_line(text: str) -> str:
    """Untrusted text, made safe for one line of a terminal.

    Control characters, line and paragraph separators and bidirectional marks are escaped as in JSON.
    """
    return _NOT_ON_A_LINE.sub(_escaped, text)


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


class _Wanted(logging.Filter):
    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self._settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return self._settings.error
        if record.levelno >= logging.WARNING:
            return self._settings.warning
        if record.levelno >= logging.INFO:
            return self._settings.info
        return self._settings.verbose_level > 0


class _StreamHandler(logging.Handler):
    """Sends lines to a :class:`LogStream`."""

    def __init__(self, stream: LogStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        self._stream.write(self.format(record).encode("utf-8", "backslashreplace") + b"\n")

    def flush(self) -> None:
        self._stream.flush(_FLUSH_S)


def take_closed_descriptors() -> None:
    """Occupy closed standard streams, so that no other file gets their descriptors and receives log lines."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def set_up_logging(settings: LogSettings, informational: TextIO | None) -> None:
    """Send this package's log to the terminal. Called once, by the command line.

    Args:
        settings: which lines are written.
        informational: where informational lines go, such as ``sys.stdout``. All others go to stderr.
    """
    logger = logging.getLogger(_ROOT)
    logger.propagate = False
    logger.setLevel(VERBOSE if settings.verbose_level > 0 else logging.INFO)
    logger.handlers.clear()
    streams: dict[tuple[int, int], LogStream] = {}
    for output, lines in ((informational, _is_informational), (sys.stderr, _is_no_information)):
        handler = _handler_for(output, streams)
        handler.setFormatter(LineFormatter(breaks_lines=_is_terminal(output)))
        handler.addFilter(_Wanted(settings))
        handler.addFilter(lines)
        logger.addHandler(handler)


def _handler_for(output: TextIO | None, streams: dict[tuple[int, int], LogStream]) -> logging.Handler:
    """A handler for this output; two outputs in one file or pipe share a queue, so that lines keep their order."""
    try:
        descriptor = -1 if output is None else output.fileno()
        status = os.fstat(descriptor)
    except OSError:  # closed, or not a file
        return logging.NullHandler() if output is None else logging.StreamHandler(output)
    key = (status.st_dev, status.st_ino)
    if key not in streams:
        streams[key] = LogStream(descriptor, _dropped_notice)
    return _StreamHandler(streams[key])


def _is_terminal(output: TextIO | None) -> bool:
    try:
        return output is not None and output.isatty()
    except ValueError:  # closed
        return False


def _dropped_notice(lines: int) -> bytes:
    message = f"dropped {lines} lines of this log: its reader was too slow for too long"
    record = logging.LogRecord(_ROOT, logging.WARNING, __file__, 0, message, (), None)
    return LineFormatter().format(record).encode() + b"\n"


def _is_informational(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


def _is_no_information(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def wants_model_level(level: int) -> bool:
    """Whether lines of this ``pb_utils.Logger.LogLevel`` number may be written at all."""
    return _MODEL.isEnabledFor(_model_level(level))


def write_model_line(instance_name: str, pid: int, level: int, file: str, line: int, message: str) -> None:
    """Write a log line of a model.

    Args:
        instance_name: written before the file name.
        pid: the process that logged it.
        level: number of a ``pb_utils.Logger.LogLevel``.
        file: source file; ``output`` for printed text.
        line: line number in that file.
        message: text.
    """
    record = _MODEL.makeRecord(_MODEL.name, _model_level(level), file, line, message, (), None)
    record.filename = f"{instance_name}/{record.filename}"
    record.process = pid
    _MODEL.handle(record)


def _model_level(level: int) -> int:
    return _MODEL_LEVELS[level] if level < len(_MODEL_LEVELS) else logging.INFO
