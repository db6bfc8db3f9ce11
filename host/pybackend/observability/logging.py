"""The server's log: informational lines go to stdout and all others to stderr, or all of them to a file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TextIO

from pybackend.observability.log_lines import LineFormatter, LogFormat, LogSettings, formatter_for
from pybackend.observability.log_stream import LogFile, LogStream
from pybackend.observability.recent_lines import RecentLines

_ROOT = "pybackend"
_MODEL = logging.getLogger("pybackend.models")

VERBOSE = logging.DEBUG

AS_IT_IS = {"as_it_is": True}
"""Passed as ``extra`` with text to copy from the terminal: it is written without stamp and quotes."""

DETAIL = {"is_detail": True}
"""Passed as ``extra`` with a step whose outcome has a line too: lines of format ``short`` leave it out."""

_STDERR = 2

_SLOW_READER = "its reader was too slow for too long"

_FLUSH_S = 1.0
"""How long shutdown waits for the log's readers."""

# The numbers of pb_utils.Logger.LogLevel: INFO, WARNING, ERROR, VERBOSE.
_MODEL_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, VERBOSE)


class _Wanted(logging.Filter):
    def __init__(self, server_log: ServerLog) -> None:
        super().__init__()
        self._log = server_log

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self._log.settings
        if getattr(record, "is_detail", False) and settings.format is LogFormat.SHORT and not settings.verbose_level:
            return False
        if record.levelno >= logging.ERROR:
            return settings.error
        if record.levelno >= logging.WARNING:
            return settings.warning
        if record.levelno >= logging.INFO:
            return settings.info
        return settings.verbose_level > 0


class _SinkHandler(logging.Handler):
    """Sends records to a sink."""

    def __init__(self, sink: LineSink, *, breaks_lines: bool) -> None:
        super().__init__()
        self.sink = sink
        self.breaks_lines = breaks_lines

    def emit(self, record: logging.LogRecord) -> None:
        self.sink.write(_encoded(self.format(record)))

    def flush(self) -> None:
        self.sink.flush(_FLUSH_S)


class _TextSink:
    """A standard stream that is an object of Python's, and no descriptor."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def write(self, lines: bytes) -> None:
        self._output.write(lines.decode())

    def flush(self, _timeout_s: float) -> None:
        self._output.flush()

    close = flush


log = logging.getLogger(__name__)

_SWITCHES = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class ServerLog:
    """The log of this process. Python has one registry of loggers for a process, and so there is one of these."""

    def __init__(self) -> None:
        self._settings = LogSettings()
        self._handlers: list[_SinkHandler] = []
        self._file: LogFile | None = None
        self._watchers: list[Callable[[], None]] = []
        self.recent = RecentLines()

    @property
    def settings(self) -> LogSettings:
        return self._settings

    def open(self, settings: LogSettings, informational: TextIO | None) -> None:
        """Begin to write this package's log; until then its lines go where Python's logging sends them.

        Informational lines go to this stream, all others to stderr, unless there is a file.
        """
        logger = logging.getLogger(_ROOT)
        logger.propagate = False
        logger.handlers.clear()
        self._settings = settings
        if settings.file is not None:
            self._file = LogFile(settings.file, self._lost_notice, self._complain)
            self._handlers = [_SinkHandler(self._file, breaks_lines=False)]
        else:
            self._handlers = _terminal_handlers(informational, self._lost_notice)
        for handler in self._handlers:
            handler.addFilter(_Wanted(self))
            logger.addHandler(handler)
        self.recent = RecentLines()
        self.recent.addFilter(_Wanted(self))
        logger.addHandler(self.recent)
        self.change()

    def close(self) -> None:
        """End :meth:`open`, in a process that goes on without a server."""
        logger = logging.getLogger(_ROOT)
        for handler in self._handlers:
            logger.removeHandler(handler)
            handler.sink.close(_FLUSH_S)
        logger.removeHandler(self.recent)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
        self._handlers, self._file, self._settings = [], None, LogSettings()

    def change(self, **changes: Any) -> None:
        """Change attributes of the settings.

        Nobody silences the log unseen: each level that ends says so in its last line.
        """
        for name, level in _SWITCHES.items():
            if getattr(self._settings, name) and not changes.get(name, True):
                log.log(
                    level,
                    "a client has switched off this log's lines of level %s; POST /v2/logging brings them back",
                    name,
                )
        self._settings = replace(self._settings, **changes)
        for handler in self._handlers:
            handler.setFormatter(formatter_for(self._settings, breaks_lines=handler.breaks_lines))
        logging.getLogger(_ROOT).setLevel(VERBOSE if self._settings.verbose_level > 0 else logging.INFO)
        for changed in self._watchers:
            changed()

    def watch(self, changed: Callable[[], None]) -> None:
        """Have a function called after each change of the settings."""
        self._watchers.append(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """End :meth:`watch`."""
        self._watchers.remove(changed)

    @property
    def has_file(self) -> bool:
        """True if lines go to a file."""
        return self._file is not None

    def reopen(self) -> None:
        """Open the log file again, because somebody has moved it."""
        if self._file is not None:
            logging.getLogger(__name__).info("opening the log file again")
            self._file.reopen()

    def write_lines(self, lines: list[str]) -> None:
        if self._handlers and lines:
            self._handlers[0].sink.write(_encoded("\n".join(lines)))

    @property
    def informational(self) -> LineFormatter:
        """The present form of informational lines."""
        return formatter_for(self._settings, breaks_lines=bool(self._handlers) and self._handlers[0].breaks_lines)

    def _lost_notice(self, lines: int, reason: str) -> bytes:
        record = logging.LogRecord(
            _ROOT, logging.WARNING, __file__, 0, f"dropped {lines} lines of this log: {reason}", (), None
        )
        return _encoded(formatter_for(self._settings, breaks_lines=False).format(record))

    def _complain(self, sentence: str) -> None:
        """Write about the log file to stderr."""
        record = logging.LogRecord(_ROOT, logging.WARNING, __file__, 0, sentence, (), None)
        line = _encoded(formatter_for(self._settings, breaks_lines=False).format(record))
        with suppress(OSError):  # it is closed
            LogStream(_STDERR, lambda lines: self._lost_notice(lines, _SLOW_READER)).write(line)


LOG = ServerLog()


def _terminal_handlers(informational: TextIO | None, notice: Callable[[int, str], bytes]) -> list[_SinkHandler]:
    """Handlers for both standard streams; two in one file or pipe share a queue, so that lines keep their order."""
    streams: dict[tuple[int, int], LogStream] = {}
    handlers = []
    for output, lines in ((informational, _is_informational), (sys.stderr, _is_no_information)):
        handler = _SinkHandler(_sink_for(output, streams, notice), breaks_lines=_is_terminal(output))
        handler.addFilter(lines)
        handlers.append(handler)
    return handlers


def _sink_for(
    output: TextIO | None, streams: dict[tuple[int, int], LogStream], notice: Callable[[int, str], bytes]
) -> LineSink:
    try:
        descriptor = -1 if output is None else output.fileno()
        status = os.fstat(descriptor)
    except OSError:  # closed, or not a file
        return _Nowhere() if output is None else _TextSink(output)
    key = (status.st_dev, status.st_ino)
    if key not in streams:
        streams[key] = LogStream(descriptor, lambda lines: notice(lines, _SLOW_READER))
    return streams[key]


class _Nowhere:
    """Takes the lines of a stream that does not exist."""

    def write(self, _lines: bytes) -> None:
        """Drop them."""

    def flush(self, _timeout_s: float) -> None:
        """Do nothing."""

    close = flush


LineSink = LogFile | LogStream | _TextSink | _Nowhere
"""Takes whole lines and never waits; ``flush`` waits until everything is written, but not longer than it is told."""


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace") + b"\n"


def take_closed_descriptors() -> None:
    """Occupy closed standard streams, so that no other file gets their descriptors and receives log lines."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


def _is_terminal(output: TextIO | None) -> bool:
    try:
        return output is not None and output.isatty()
    except ValueError:  # closed
        return False


def _is_informational(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


def _is_no_information(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def wants_model_level(level: int) -> bool:
    """Whether lines of this ``pb_utils.Logger.LogLevel`` number may be written at all."""
    return _MODEL.isEnabledFor(_model_level(level))


def write_model_line(
    instance_name: str,
    pid: int,
    level: int,
    file: str,
    line: int,
    message: str,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a log line of a model.

    ``level`` is the number of a ``pb_utils.Logger.LogLevel``, and ``file`` is ``output`` for printed text. Only JSON
    shows ``about``, without its empty facts.
    """
    record = _MODEL.makeRecord(_MODEL.name, _model_level(level), file, line, message, (), None)
    record.filename = f"{instance_name}/{record.filename}"
    record.instance = instance_name
    record.about = about or {}
    record.process = pid
    _MODEL.handle(record)


def _model_level(level: int) -> int:
    return _MODEL_LEVELS[level] if level < len(_MODEL_LEVELS) else logging.INFO


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect the texts of what a server would log as warnings while a ``with`` block lasts."""
    collector = _Collector()
    logger = logging.getLogger("pybackend")
    logger.addHandler(collector)
    try:
        yield collector.texts
    finally:
        logger.removeHandler(collector)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts.append(text if text.endswith((".", "`")) else f"{text}.")
