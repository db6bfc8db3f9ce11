"""``breakpoint()`` and ``pdb.set_trace()`` in a model: a session on the server's terminal, or one line in its log.

Imported only in stubs whose model has imported ``pdb``. The terminal is a socket to the host, which shows what comes
and answers :data:`~pybackend_wire.messages.WANTS_LINE` with a line that somebody has typed. It belongs to one process
at a time, until that sends :data:`~pybackend_wire.messages.GIVES_BACK`.
"""

import bdb
import io
import os
import pdb  # noqa: T100  this is what models import
import sys
from typing import Any, Optional, Set, Tuple

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_stub.model_output import write_record
from pybackend_wire.messages import END_OF_INPUT, GIVES_BACK, WANTS_LINE

_OURS = ("pybackend_stub", "pybackend_sdk", "pybackend_testing", "pybackend_wire", "triton_python_backend_utils")

_NO_TERMINAL = (
    "breakpoint() and pdb.set_trace() do nothing here: there is no terminal. `pybackend dev` in a terminal stops there, and "
    "an editor stops there with --debug=MODEL"
)
_HAS_DEBUGGER = "pdb.set_trace() does nothing under --debug: write breakpoint(), where the editor stops"
_LEFT = "the debugger's command q ended this execution; c lets it go on"


def take_over(terminal: "Optional[int]", debugged: bool) -> None:
    """Give ``pdb.set_trace``, which ``breakpoint`` calls too, a meaning in this process.

    Args:
        terminal: the socket to the server's terminal; None if it has none.
        debugged: an editor's debugger runs in this process.
    """
    session = None if terminal is None or debugged else ModelDebugger(TerminalFile(terminal))
    said: Set[Tuple[str, int]] = set()

    def set_trace(*, header: "Optional[str]" = None, **_options: Any) -> None:
        frame = sys._getframe().f_back
        assert frame is not None
        if session is not None:
            session.begin(frame, header)
            return
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in said:
            said.add(place)
            write_record(int(Logger.WARNING), *place, _HAS_DEBUGGER if debugged else _NO_TERMINAL)

    pdb.set_trace = set_trace


class TerminalFile(io.TextIOBase):
    """The server's terminal, as a file."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._typed = b""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send(text.encode("utf-8", "backslashreplace").translate(None, WANTS_LINE + GIVES_BACK))
        return len(text)

    def readline(self, _size: "Optional[int]" = -1) -> str:  # type: ignore[override]
        """Wait for a line; empty at the end of input, and when the server is gone."""
        self._send(WANTS_LINE)
        while b"\n" not in self._typed and END_OF_INPUT not in self._typed:
            data = os.read(self._descriptor, 4096)
            if not data:
                return ""
            self._typed += data
        if END_OF_INPUT in self._typed:
            self._typed = b""
            return ""
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace") + "\n"

    def give_back(self) -> None:
        """Let other processes have it."""
        self._send(GIVES_BACK)

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class ModelDebugger(pdb.Pdb):
    """Pdb on a terminal; it stops in no code of the server's, and ends when the model's code has returned."""

    def __init__(self, terminal: TerminalFile) -> None:
        stream: Any = terminal
        # nosigint: Ctrl-C is the server's.
        super().__init__(stdin=stream, stdout=stream, skip=[f"{name}*" for name in _OURS], nosigint=True)
        self._terminal = terminal

    def begin(self, frame: Any, header: "Optional[str]") -> None:
        if header is not None:
            self.message(header)
        self.set_trace(frame)

    def set_continue(self) -> None:
        super().set_continue()
        self._terminal.give_back()

    def set_quit(self) -> None:
        super().set_quit()
        self._terminal.give_back()

    def dispatch_return(self, frame: Any, arg: Any) -> Any:
        traced = super().dispatch_return(frame, arg)
        caller = frame.f_back
        if caller is None or str(caller.f_globals.get("__name__")).startswith(_OURS):
            self.set_continue()
        return traced

    def trace_dispatch(self, frame: Any, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise TritonModelException(_LEFT) from None
