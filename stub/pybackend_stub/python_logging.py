"""Python's own ``logging`` in a model: records that the model has no use of its own for go to the server's log.

Imported only when a model, or something that it uses, has imported ``logging``.
"""

import functools
import logging
from typing import Any, Callable

from pybackend_sdk.logger import Logger

WriteRecord = Callable[[int, str, int, str], object]
"""Takes level, file, line and message to the server's log."""

_UNDECIDED = frozenset({"level", "force"})
"""What may be asked of ``basicConfig`` by somebody who does not care where lines go and what they look like."""


class RecordHandler(logging.Handler):
    """Writes to the server's log, with the level and the place that a record has."""

    def __init__(self, write_record: WriteRecord) -> None:
        super().__init__()
        self._write = write_record
        self.setFormatter(logging.Formatter("%(message)s"))  # what else a line needs, the host knows

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            self._write(_level_of(record.levelno), record.pathname, record.lineno, self.format(record))
        except Exception:  # noqa: BLE001  like every handler: what cannot be formatted must not fail the model
            self.handleError(record)


def _level_of(number: int) -> int:
    if number >= logging.ERROR:
        return int(Logger.ERROR)
    if number >= logging.WARNING:
        return int(Logger.WARNING)
    return int(Logger.INFO if number >= logging.INFO else Logger.VERBOSE)


def take_over(write_record: WriteRecord) -> None:
    """Serve what no handler of the model's serves, and what ``basicConfig`` would send to stderr in its default format."""
    logging.lastResort = RecordHandler(write_record)
    basic_config = logging.basicConfig

    @functools.wraps(basic_config)
    def to_the_server(**options: Any) -> None:
        if options.keys() <= _UNDECIDED:
            options["handlers"] = [RecordHandler(write_record)]
        basic_config(**options)

    logging.basicConfig = to_the_server
