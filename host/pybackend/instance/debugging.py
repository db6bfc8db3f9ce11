"""Models under a debugger: on which ports their processes listen, and what an editor needs to know to attach."""

from __future__ import annotations

import asyncio
import codecs
import json
import logging
import os
import re
import socket
import termios
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.ipc.unwanted_descriptors import refuse_descriptors
from pybackend.observability.log_lines import one_line
from pybackend.observability.log_stream import LogStream
from pybackend.observability.logging import AS_IT_IS
from pybackend.ports import free_ports
from pybackend.settings import DebugSettings
from pybackend_wire.host_messages import DebuggerPoint
from pybackend_wire.messages import END_OF_INPUT, GIVES_BACK, WANTS_LINE

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""A client that attaches can run code in the model, so only this machine may."""

_HIGHEST_PORT = 65535


class DebuggerPorts:
    """Hands out one port per process of the models that are debugged; a process that is restarted keeps its own."""

    def __init__(self, settings: DebugSettings) -> None:
        self._settings = settings
        self._taken: set[int] = set()

    def debugs(self, model_name: str) -> bool:
        return model_name in self._settings.models

    def reserve(self, instance_names: Sequence[str]) -> list[DebuggerPoint]:
        """Where the processes of these instances are to listen; how to attach to them is written to the log.

        Raises ModelLoadError if there are not that many ports.
        """
        points = []
        for _ in instance_names:
            port = self._free_port() if self._settings.port == 0 else self._next_port()
            self._taken.add(port)
            points.append(DebuggerPoint(port, self._settings.waits))
        log.info("%s", _how_to_attach(instance_names, points), extra=AS_IT_IS)
        return points

    def give_back(self, points: Sequence[DebuggerPoint]) -> None:
        self._taken.difference_update(point.port for point in points)

    def _next_port(self) -> int:
        port = self._settings.port
        while port in self._taken:
            port += 1
        if port > _HIGHEST_PORT:
            raise ModelLoadError(
                f"there is no port left for a debugger from {self._settings.port} on: choose a lower --debug-port",
                ErrorCode.UNAVAILABLE,
            )
        return port

    def _free_port(self) -> int:
        while True:
            (port,) = free_ports(ADDRESS)
            if port not in self._taken:
                return port


def _how_to_attach(instance_names: Sequence[str], points: Sequence[DebuggerPoint]) -> str:
    """Lines to copy: entries of VS Code's launch.json, and addresses for other editors."""
    named = list(zip(map(one_line, instance_names), points, strict=True))
    entries = [
        {
            "name": f"pybackend: {name}",
            "type": "debugpy",
            "request": "attach",
            "connect": {"host": ADDRESS, "port": point.port},
            "justMyCode": True,
        }
        for name, point in named
    ]
    places = ", ".join(f"{ADDRESS}:{point.port} ({name})" for name, point in named)
    return "\n".join(
        [
            'To debug in VS Code, add to "configurations" in .vscode/launch.json:',
            ",\n".join(json.dumps(entry, indent=4) for entry in entries),
            f"Other clients of the Debug Adapter Protocol attach to {places}",
        ]
    )


_MOST_BYTES = 64 * 1024
"""Read from a process at a time."""

_MOST_TYPED_BYTES = 4096
"""The longest line of a terminal."""

_FOREGROUND_S = 1.0
"""How often a server in the background looks whether it is in the foreground again, once something was typed."""

_SIGNALS = re.compile(b"([" + re.escape(WANTS_LINE + GIVES_BACK) + b"])")


class Terminal:
    """A terminal, and those who want it."""

    def __init__(self, typed: int, shown: int) -> None:
        self._typed = typed
        self._shown = LogStream(shown, lambda lines: f"({lines} lines left out)\n".encode())
        self._holder: TerminalLine | None = None
        self._waiting: deque[TerminalLine] = deque()
        self._reads = False

    def connect(self, instance_name: str) -> tuple[TerminalLine, socket.socket]:
        """A line to the terminal for a process, and the process's end of it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        refuse_descriptors(ours)
        ours.setblocking(False)
        return TerminalLine(self, instance_name, ours), theirs

    def ask_for(self, line: TerminalLine) -> bool:
        """Whether a process has the terminal; it may have to wait for another one."""
        if self._holder is None:
            self._holder = line
            if self._is_in_foreground():
                with suppress(termios.error):  # what was typed before was not meant for it
                    termios.tcflush(self._typed, termios.TCIFLUSH)
            log.info(
                "model process '%s' has stopped at a breakpoint and reads commands from this terminal: h lists them, c goes on",
                line.instance_name,
            )
        elif self._holder is not line and line not in self._waiting:
            self._waiting.append(line)
        return self._holder is line

    def release(self, line: TerminalLine) -> None:
        """A process needs the terminal no longer."""
        if line in self._waiting:
            self._waiting.remove(line)
        if self._holder is not line:
            return
        self._stop_reading()
        self._holder = None
        if self._waiting:
            self._waiting.popleft().resume()

    def show(self, text: str) -> None:
        self._shown.write("\n".join(map(one_line, text.split("\n"))).encode("utf-8", "backslashreplace"))

    def read_line(self) -> None:
        """Give the holder the next line that is typed."""
        if self._holder is not None and not self._reads:
            self._reads = True
            asyncio.get_running_loop().add_reader(self._typed, self._on_typed)

    def _on_typed(self) -> None:
        self._stop_reading()
        if not self._is_in_foreground():
            asyncio.get_running_loop().call_later(_FOREGROUND_S, self.read_line)
            return
        data = b""
        with suppress(OSError):  # the terminal is gone, which is the end of input
            data = os.read(self._typed, _MOST_TYPED_BYTES)
        if self._holder is not None:
            self._holder.send(data or END_OF_INPUT)
        if data and not data.endswith(b"\n"):  # Ctrl-D within a line, or a long one
            self.read_line()

    def _is_in_foreground(self) -> bool:
        """Whether what is typed is meant for this process. The system stops background processes that read it."""
        try:
            return os.tcgetpgrp(self._typed) == os.getpgrp()
        except OSError:  # no terminal that controls processes
            return True

    def _stop_reading(self) -> None:
        if self._reads:
            self._reads = False
            asyncio.get_running_loop().remove_reader(self._typed)


class TerminalLine:
    """The way of one process to the terminal."""

    def __init__(self, terminal: Terminal, instance_name: str, end: socket.socket) -> None:
        self.instance_name = instance_name
        self._terminal = terminal
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._left_ns: int | None = 0
        self._unread = b""
        self.resume()

    @property
    def left_ns(self) -> int:
        """When the process gave the terminal back last; the present time while it has or wants it."""
        return time.monotonic_ns() if self._left_ns is None else self._left_ns

    def resume(self) -> None:
        """Read what the process says: it may have the terminal."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end, self._on_text)
        if self._unread:
            loop.call_soon(self._on_text)

    def send(self, data: bytes) -> None:
        """Give the process what was typed."""
        with suppress(OSError):  # it is gone, or does not read
            self._end.send(data)

    def close(self) -> None:
        self._stop()
        self._terminal.release(self)
        self._end.close()

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)

    def _on_text(self) -> None:
        """Act on what the process has said, up to where it must wait for the terminal."""
        self._left_ns = None
        if not self._unread:
            try:
                self._unread = self._end.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                pass
            if not self._unread:
                self._stop()
                self._terminal.release(self)
        while self._unread:
            if not self._terminal.ask_for(self):
                self._stop()
                return
            text, *rest = _SIGNALS.split(self._unread, 1)
            signal, self._unread = rest or (b"", b"")
            self._terminal.show(self._decoder.decode(text))
            if signal == WANTS_LINE:
                self._terminal.read_line()
            elif signal == GIVES_BACK:
                self._left_ns = time.monotonic_ns()
                self._terminal.release(self)
