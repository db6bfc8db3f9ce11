"""Python's ``logging`` in a model: records that the model does not handle itself go to the server's log.

Imported only when the model or one of its libraries has imported ``logging``.
"""

import functools
import logging
from typing import Any, Callable

from pybackend_sdk.logger import Logger

WriteRecord = Callable[[int, str, int, str], object]
"""Writes level, file, line and message to the server's log."""

_UNDECIDED = frozenset({"level", "force"})
"""Options of ``basicConfig`` that leave open where lines go and what they look like."""


class RecordHandler(logging.Handler):
    """Writes records to the server's log, with their level and source location."""

    def __init__(self, write_record: WriteRecord) -> None:
        super().__init__()
        self._write = write_record
        self.setFormatter(logging.Formatter("%(message)s"))  # the host adds the rest of the line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(_level_of(record.levelno), record.pathname, record.lineno, self.format(record))
        except Exception:  # noqa: BLE001  as in every handler, a formatting error must not fail the model
            self.handleError(record)


def _level_of(number: int) -> int:
    if number >= logging.ERROR:
        return int(Logger.ERROR)
    if number >= logging.WARNING:
        return int(Logger.WARNING)
    return int(Logger.INFO if number >= logging.INFO else Logger.VERBOSE)


def take_over(write_record: WriteRecord) -> None:
    """Handle records that no handler of the model handles, and those that ``basicConfig`` would print to stderr."""
    logging.lastResort = RecordHandler(write_record)
    basic_config = logging.basicConfig

    @functools.wraps(basic_config)
    def to_the_server(**options: Any) -> None:
        if options.keys() <= _UNDECIDED:
            options["handlers"] = [RecordHandler(write_record)]
        basic_config(**options)

    logging.basicConfig = to_the_server
