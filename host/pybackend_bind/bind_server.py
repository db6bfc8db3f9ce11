"""The server's process beside this one: its start, its end, and what both tell each other."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pybackend_bind.exceptions import PyTritonModelConfigError, PyTritonRuntimeError
from pybackend_bind.instance import Bound, Instances
from pybackend_wire.caller import FAILED, LOAD, LOADED, MOST_BYTES, READY, RUN, connected_pair, message_in, packet

log = logging.getLogger("pybackend_bind")

_DESCRIPTORS = 2
"""With a message about an instance: its socket, and its pipe for nudges."""

_KILL_AFTER_S = 15.0
"""How much longer than it may take to stop a server lives before it is killed."""


class ServerProcess:
    """One server, from its start to its end.

    Args:
        flags: of ``pybackend serve``.
        variables: its environment has them, beside those of this process.
        find: the model with a name; None if there is none.
        on_end: called with ``end`` to come, in another thread, when it has ended without having been told to.
    """

    def __init__(
        self,
        flags: Sequence[str],
        variables: Mapping[str, str],
        find: Callable[[str], Bound | None],
        on_end: Callable[[str], None],
    ) -> None:
        self.addresses: dict[str, str] = {}
        self.end = ""  # how it ended, in a sentence; empty while it runs
        self._find = find
        self._on_end = on_end
        self._instances = Instances()
        self._changed = threading.Condition()
        self._loads: dict[str, str] = {}
        self._failure = ""
        self._told_to_end = False
        self._pid = os.getpid()
        self._socket, theirs = connected_pair()
        with theirs:
            command = [sys.executable, "-P", "-m", "pybackend.cli.beside", str(theirs.fileno()), *flags]
            try:
                # A separate session: Ctrl-C is for this process, which stops the server.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    env={**os.environ, **variables},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                self._socket.close()
                raise
        _servers.add(self)
        self._thread = threading.Thread(target=self._listen, name="pybackend-bind", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._socket.close()  # it ends
            self._process.wait()
            raise PyTritonRuntimeError(f"the server cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """True while it runs; False in a process that was forked from this one."""
        return not self.end and self._pid == os.getpid()

    def wait_ready(self) -> None:
        """Wait until it serves. Raises PyTritonRuntimeError: it cannot."""
        with self._changed:
            self._changed.wait_for(lambda: self.addresses or self.end)
        if self.end:
            raise PyTritonRuntimeError(f"the server cannot start: {self._failure}" if self._failure else self.end)

    def load(self, model: str) -> None:
        """Have it load a model.

        Raises PyTritonModelConfigError: it cannot be loaded; PyTritonRuntimeError: the server has ended.
        """
        with suppress(OSError):  # it has ended
            self._socket.send(packet(LOAD, model=model))
        with self._changed:
            self._changed.wait_for(lambda: model in self._loads or self.end)
            if model not in self._loads:
                raise PyTritonRuntimeError(self.end)
            error = self._loads.pop(model)
        if error:
            raise PyTritonModelConfigError(error.strip())

    def stop(self, limit_s: float) -> None:
        """Answer the running requests and end it. Ctrl-C meanwhile cuts them short, and is raised at the end."""
        if self._pid != os.getpid():
            return
        self._told_to_end = True
        interruption: BaseException | None = None
        deadline_s = time.monotonic() + limit_s + _KILL_AFTER_S
        self._signal(signal.SIGTERM)
        while not self.end:
            try:
                with self._changed:
                    is_over = self._changed.wait_for(lambda: self.end, max(0, deadline_s - time.monotonic()))
                if not is_over:
                    log.error("the server, process %d, does not end, and is killed", self.pid)
                    self._signal(signal.SIGKILL)
                    deadline_s += _KILL_AFTER_S
            except KeyboardInterrupt as error:
                interruption = error
                self._signal(signal.SIGTERM)
        if interruption is not None:
            raise interruption

    def _signal(self, number: signal.Signals) -> None:
        if not self.end:  # so it is not reaped
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def leave_to_parent(self) -> None:
        """In a forked child of this process: the server is the parent's."""
        self._instances.leave_to_parent()
        self._socket.close()

    # In the thread

    def _listen(self) -> None:
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(
                    self._socket, MOST_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
                if not data:
                    break
                self._take(data, descriptors)
        except OSError:  # it has ended with packets of ours unread
            pass
        except Exception:
            log.exception("the connection with the server is broken")
        self._socket.close()
        status = self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        end = f"the server, process {self.pid}, {how}: its requests are lost, and run() starts another one"
        if not self._told_to_end:
            self._on_end(end)
        with self._changed:
            self.end = end
            self._changed.notify_all()

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        kind, fields = message_in(data)
        if kind == RUN:
            self._run(fields["model"], fields["number"], descriptors)
            return
        with self._changed:
            if kind == READY:
                self.addresses = fields
            elif kind == LOADED:
                self._loads[fields["model"]] = fields["error"]
            elif kind == FAILED:
                self._failure = fields["error"]
            self._changed.notify_all()

    def _run(self, model: str, number: int, descriptors: list[int]) -> None:
        """Run an instance; the server hears the end of its socket if that is impossible."""
        bound = self._find(model)
        reason = "it is not bound" if bound is None else "this process has too many open files"
        if bound is not None and len(descriptors) == _DESCRIPTORS:
            try:
                self._instances.start(bound, number, *descriptors)
            except RuntimeError as error:
                reason = str(error)
            else:
                return
        log.error("an instance of model '%s' cannot start: %s", model, reason)
        for descriptor in descriptors:
            os.close(descriptor)


_servers: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


def _leave_all() -> None:
    for server in tuple(_servers):
        server.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all)
