"""Collects what a server would log as warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the texts of warnings while a ``with`` block lasts."""
    collector = _Collector(logging.WARNING)
    logger = logging.getLogger("pybackend")
    logger.addHandler(collector)
    try:
        yield collector.texts
    finally:
        logger.removeHandler(collector)


class _Collector(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts.append(text if text.endswith((".", "`")) else f"{text}.")
