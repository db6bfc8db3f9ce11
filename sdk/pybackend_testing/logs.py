"""Log lines that a model writes through ``pb_utils.Logger``: kept for the test and passed to Python's logging."""

import logging
import os
from typing import List, NamedTuple

from pybackend_sdk.logger import Logger

_PYTHON_LEVELS = {
    Logger.INFO: logging.INFO,
    Logger.WARNING: logging.WARNING,
    Logger.ERROR: logging.ERROR,
    Logger.VERBOSE: logging.DEBUG,
}


class LogLine(NamedTuple):
    """One line.

    Attributes:
        level: ``INFO``, ``WARNING``, ``ERROR`` or ``VERBOSE``.
        message: the text.
        file: path of the file that wrote it.
        line: line number in that file.
    """

    level: str
    message: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.level} {os.path.basename(self.file)}:{self.line}] {self.message}"


class ModelLog:
    """Collects a model's lines; pytest shows them with a failure, as records of logger ``pybackend.model.<name>``."""

    def __init__(self, model_name: str) -> None:
        self.lines: List[LogLine] = []
        self._logger = logging.getLogger(f"pybackend.model.{model_name}")

    def add(self, level: Logger.LogLevel, file: str, line: int, message: str) -> None:
        self.lines.append(LogLine(level.name, message, file, line))
        python_level = _PYTHON_LEVELS[level]
        if self._logger.isEnabledFor(python_level):
            record = self._logger.makeRecord(self._logger.name, python_level, file, line, "%s", (message,), None)
            self._logger.handle(record)
