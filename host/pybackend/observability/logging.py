"""The server's log: lines in the format that operators' scripts know, informational ones to stdout, others to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import dataclass

_ROOT = "pybackend"
_MODEL = logging.getLogger("pybackend.models")

VERBOSE = logging.DEBUG

_LETTERS = {logging.ERROR: "E", logging.CRITICAL: "E", logging.WARNING: "W"}

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
        now = time.gmtime(record.created)
        stamp = time.strftime("%m%d %H:%M:%S", now)
        micros = int(record.created % 1 * 1e6)
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        letter = _LETTERS.get(record.levelno, "I")
        quoted = json.dumps(message, ensure_ascii=False)
        return f"{letter}{stamp}.{micros:06d} {os.getpid()} {record.filename}:{record.lineno}] {quoted}"


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


def set_up_logging(settings: LogSettings) -> None:
    """Send this package's log to the terminal; called once, by the command line."""
    logger = logging.getLogger(_ROOT)
    logger.propagate = False
    logger.setLevel(VERBOSE)
    logger.handlers.clear()
    for stream in (sys.stdout, sys.stderr):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(LineFormatter())
        handler.addFilter(_Wanted(settings))
        if stream is sys.stderr:
            handler.setLevel(logging.WARNING)
        else:
            handler.addFilter(_is_informational)
        logger.addHandler(handler)


def _is_informational(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


def model_log(instance_name: str, level: int, file: str, line: int, message: str) -> None:
    """Write a line of a model's ``pb_utils.Logger``, with the place in the model that it comes from."""
    number = _MODEL_LEVELS[level] if level < len(_MODEL_LEVELS) else logging.INFO
    record = _MODEL.makeRecord(_MODEL.name, number, file, line, message, (), None, extra={"instance": instance_name})
    _MODEL.handle(record)
