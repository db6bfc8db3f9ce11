"""The last lines of the server's log in memory, for those who look at a running server."""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any

from pybackend.observability.log_lines import LineFormatter

MOST_LINES = 1000
_LONGEST = 8192


class RecentLines(logging.Handler):
    """Keeps a bounded number of lines of bounded length, with what they are about."""

    def __init__(self) -> None:
        super().__init__()
        self._format = LineFormatter()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        self._last = 0  # the number of the last line

    def emit(self, record: logging.LogRecord) -> None:
        text = self._format.message(record)
        about = getattr(record, "about", None) or {}
        self._last += 1
        self._lines.append({
            "number": self._last,
            "time": record.created,
            "level": record.levelname,
            "model": about.get("model", ""),
            "version": about.get("version", ""),
            "instance": getattr(record, "instance", ""),
            "place": f"{record.filename}:{record.lineno}",
            "text": text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ...",
        })  # fmt: skip

    def since(self, number: int, model: str) -> list[dict[str, Any]]:
        """The kept lines after one of this number, of one model if it is not ``""``.

        All are, for a number that no line has had yet: an earlier server gave it.
        """
        kept: Iterable[dict[str, Any]] = tuple(self._lines)
        number = 0 if number > self._last else number
        return [line for line in kept if line["number"] > number and model in {"", line["model"]}]
