"""The server's log: lines in the format that operators' scripts know, informational ones to stdout, others to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from pybackend.observability.log_stream import LogStream

_ROOT = "pybackend"
_MODEL = logging.getLogger("pybackend.models")

VERBOSE = logging.DEBUG

AS_IT_IS = {"as_it_is": True}
"""What goes as ``extra`` with text that is to be copied from the terminal: it is written without stamp and quotes."""

_LETTERS = {logging.ERROR: "E", logging.CRITICAL: "E", logging.WARNING: "W"}

_STDERR = 2

_FLUSH_S = 1.0
"""How long the end of the server waits for whoever reads its log."""

# The numbers of pb_utils.Logger.LogLevel: INFO, WARNING, ERROR, VERBOSE.
_MODEL_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, VERBOSE)


@dataclass(frozen=True)
class LogSettings:
    """Which lines are wanted.

    Attributes:
        info: informational lines.
        warning: warnings.
        error: errors.
        verbose_level: 0 for none; from 1 on verbose lines are written, those of models included.
    """

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0


class LineFormatter(logging.Formatter):
    """``LMMDD hh:mm:ss.uuuuuu <pid> <file>:<line>] "<message>"``, in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One line per record: line breaks and quotes in the message are escaped as in JSON."""
        if getattr(record, "as_it_is", False):
            return record.getMessage()
        now = time.gmtime(record.created)
        stamp = time.strftime("%m%d %H:%M:%S", now)
        micros = int(record.created % 1 * 1e6)
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        letter = _LETTERS.get(record.levelno, "I")
        quoted = json.dumps(message, ensure_ascii=False)
        return f"{letter}{stamp}.{micros:06d} {record.process} {record.filename}:{record.lineno}] {quoted}"


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
    """Let nothing else get the descriptor of a standard stream that is closed, and be written to for it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def set_up_logging(settings: LogSettings) -> None:
    """Send this package's log to the terminal; called once, by the command line."""
    logger = logging.getLogger(_ROOT)
    logger.propagate = False
    logger.setLevel(VERBOSE if settings.verbose_level > 0 else logging.INFO)
    logger.handlers.clear()
    streams: dict[tuple[int, int], LogStream] = {}
    for output in (sys.stdout, sys.stderr):
        handler = _handler_for(output, streams)
        handler.setFormatter(LineFormatter())
        handler.addFilter(_Wanted(settings))
        if output is sys.stderr:
            handler.setLevel(logging.WARNING)
        else:
            handler.addFilter(_is_informational)
        logger.addHandler(handler)


def _handler_for(output: TextIO | None, streams: dict[tuple[int, int], LogStream]) -> logging.Handler:
    """A handler that writes there; both outputs in one file or pipe share one queue, so that lines keep their order."""
    try:
        descriptor = -1 if output is None else output.fileno()
        status = os.fstat(descriptor)
    except OSError:  # closed, or no file at all
        return logging.NullHandler() if output is None else logging.StreamHandler(output)
    key = (status.st_dev, status.st_ino)
    if key not in streams:
        streams[key] = LogStream(descriptor, _dropped_notice)
    return _StreamHandler(streams[key])


def _dropped_notice(lines: int) -> bytes:
    message = f"dropped {lines} lines of this log: whoever reads it was too slow for too long"
    record = logging.LogRecord(_ROOT, logging.WARNING, __file__, 0, message, (), None)
    return LineFormatter().format(record).encode() + b"\n"


def _is_informational(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


def wants_model_level(level: int) -> bool:
    """Whether lines of this number of a ``pb_utils.Logger.LogLevel`` may be written at all."""
    return _MODEL.isEnabledFor(_model_level(level))


def write_model_line(instance_name: str, pid: int, level: int, file: str, line: int, message: str) -> None:
    """Write a line of a model.

    Args:
        instance_name: stands before the name of the file.
        pid: process that said it.
        level: number of a ``pb_utils.Logger.LogLevel``.
        file: where it comes from; of printed text, ``output``.
        line: in that file.
        message: text.
    """
    record = _MODEL.makeRecord(_MODEL.name, _model_level(level), file, line, message, (), None)
    record.filename = f"{instance_name}/{record.filename}"
    record.process = pid
    _MODEL.handle(record)


def _model_level(level: int) -> int:
    return _MODEL_LEVELS[level] if level < len(_MODEL_LEVELS) else logging.INFO
