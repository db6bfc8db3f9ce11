"""A model's output besides its answers: log records among the lines that it prints.

The host gives a stub one pipe as standard output and standard error. :mod:`pybackend_wire.log_record` defines how
records and printed lines share it.
"""

import ctypes
import faulthandler
import json
import os
import stat
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Optional, Sequence, Tuple

from pybackend_sdk.error import printable
from pybackend_stub.imports import when_imported
from pybackend_stub.process import LIBC
from pybackend_wire.log_record import NOTHING, encode_failure_note, encode_record

if TYPE_CHECKING:
    from pybackend_sdk.request import InferenceRequest

_STDOUT, _STDERR = 1, 2
_LINE_BUFFERED = 1
"""C's ``_IOLBF``."""

_records: "Optional[int]" = None
"""A private descriptor of the pipe: a model may close or redirect the standard ones."""


class Executing(threading.local):
    """The requests that the calling thread executes, for the lines that the model logs meanwhile."""

    requests: "Sequence[InferenceRequest]" = ()  # cleared after the execution, because they would keep their memory


EXECUTING = Executing()

ABOUT: "ContextVar[Optional[Tuple[str, str]]]" = ContextVar("about", default=None)
"""The same for a coroutine: the ids of its requests and of their traces. None outside of coroutines of ``execute``."""


def ids_of(requests: "Sequence[InferenceRequest]") -> "Tuple[str, str]":
    """Return the ids of requests, and of the traces to which they belong, as log records carry them."""
    if not requests:
        return NOTHING
    contexts = [request._trace._context for request in requests if request._trace is not None]
    traces = dict.fromkeys(_trace_id(context) for context in contexts if context)
    return ", ".join(filter(None, [request._request_id for request in requests])), ", ".join(traces)


def _trace_id(context: str) -> str:
    parts = str(json.loads(context).get("traceparent", "")).split("-")
    return parts[1] if len(parts) > 1 else ""


def open_output() -> None:
    """Make printed lines appear at once and send records the same way; called once, at the start."""
    global _records  # standard output is one per process too
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # The host reads UTF-8 in any locale, and no model should fail because it printed odd characters.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    _line_buffer_native_code()
    if _is_one_pipe():
        _records = os.dup(_STDOUT)
        if sys.flags.bytes_warning:
            from pybackend_stub.bytes_warnings import take_over  # only `pybackend dev` asks for them

            take_over(write_record)
        when_imported("logging", "pybackend_stub.python_logging", write_record)


def write_record(level: int, file: str, line: int, message: str, failure: int = 0) -> bool:
    """Write a line to the server's log, attributed to ``line`` of ``file``; False if the log cannot be reached.

    ``failure`` is the number of the failure that the line is about, 0 for other lines.
    """
    if _records is None:
        return False
    name = printable(os.path.basename(file))
    about = ABOUT.get()
    if about is None and EXECUTING.requests:
        about = ids_of(EXECUTING.requests)
    ids, traces = about or NOTHING
    about = printable(ids), traces
    for piece in encode_record(
        os.getpid(), threading.get_ident(), level, name, line, printable(message), failure, about
    ):
        if not _write(_records, piece):
            return False
    return True


def write_failure_note(file: str, line: int, failure: int, who: str, what: str) -> bool:
    """Tell the server's log that an execution has failed; False if the log cannot be reached.

    See :func:`pybackend_wire.log_record.encode_failure_note`.
    """
    if _records is None:
        return False
    name = printable(os.path.basename(file))
    return _write(_records, encode_failure_note(os.getpid(), name, line, failure, printable(who), printable(what)))


def show_crashes() -> None:
    """Have a fatal signal write the Python stack of every thread to the server's log."""
    faulthandler.enable(_STDERR if _records is None else _records)


def _write(descriptor: int, piece: bytes) -> bool:
    while True:
        try:
            os.write(descriptor, piece)
            return True
        except BlockingIOError:  # the model or a library made the pipe non-blocking, but a record must wait
            import select

            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()
        except OSError:  # nothing reads the pipe any more: the host is about to end this process
            return False


def flush_output() -> None:
    """Flush text printed without a line feed, whatever the model has done to the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S110  closed, None, or an object of the model's: there is nothing to flush
            pass


def _line_buffer_native_code() -> None:
    """Make C's ``printf`` flush each line: into a pipe it collects thousands."""
    try:
        stdout = ctypes.c_void_p.in_dll(LIBC, "stdout")
    except ValueError:  # a C library with another name for it
        return
    LIBC.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))


def _is_one_pipe() -> bool:
    """Whether the host started this process; otherwise records would appear raw."""
    try:
        out, err = os.fstat(_STDOUT), os.fstat(_STDERR)
    except OSError:
        return False
    return stat.S_ISFIFO(out.st_mode) and (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
