"""``Logger``: writes lines from model code to the server's log, with the file and line of the call."""

import sys
from enum import IntEnum
from types import FrameType
from typing import Any, ClassVar, Union

from pybackend_sdk.arguments import incompatible
from pybackend_sdk.error import printable
from pybackend_sdk.runtime import current_runtime


class Logger:
    """Writes to the server's log. All methods are static; models usually keep the class itself as ``self.logger``.

    Every method raises ``TypeError`` if the message is not text; so does ``log`` if the level is not a ``LogLevel``.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ()

    class LogLevel(IntEnum):
        """Severity of a line. ``VERBOSE`` lines appear only if the server logs verbosely."""

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO: ClassVar[LogLevel] = LogLevel.INFO
    WARNING: ClassVar[LogLevel] = LogLevel.WARNING
    ERROR: ClassVar[LogLevel] = LogLevel.ERROR
    VERBOSE: ClassVar[LogLevel] = LogLevel.VERBOSE

    @staticmethod
    def log(message: Union[str, bytes], level: LogLevel = LogLevel.INFO) -> None:
        """Write a line at ``level``."""
        if not isinstance(level, Logger.LogLevel):
            incompatible("log", "level", "a Logger.LogLevel, e.g. Logger.INFO", level)
        _write("log", level, message, sys._getframe(1))

    @staticmethod
    def log_info(message: Union[str, bytes]) -> None:
        """Write a line at level INFO."""
        _write("log_info", Logger.INFO, message, sys._getframe(1))

    @staticmethod
    def log_warn(message: Union[str, bytes]) -> None:
        """Write a line at level WARNING."""
        _write("log_warn", Logger.WARNING, message, sys._getframe(1))

    @staticmethod
    def log_error(message: Union[str, bytes]) -> None:
        """Write a line at level ERROR."""
        _write("log_error", Logger.ERROR, message, sys._getframe(1))

    @staticmethod
    def log_verbose(message: Union[str, bytes]) -> None:
        """Write a line at level VERBOSE."""
        _write("log_verbose", Logger.VERBOSE, message, sys._getframe(1))


def _write(call: str, level: Logger.LogLevel, message: Any, caller: FrameType) -> None:
    if not isinstance(message, (str, bytes)):
        incompatible(call, "message", "a str", message)
    current_runtime().log(level, caller.f_code.co_filename, caller.f_lineno, printable(message))


def async_event_future_done_callback(future: Any) -> None:
    """Log a finished future's exception; for ``add_done_callback`` on work that nothing awaits."""
    if future.cancelled():
        return
    exception = future.exception()
    if exception is not None:
        _write("log_error", Logger.ERROR, f"{type(exception).__name__}: {exception}", sys._getframe(1))
