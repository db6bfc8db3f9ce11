"""Runs the shell that captures an environment's hook variables, with fewer permissions than any of its models."""

from __future__ import annotations

import asyncio
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from pybackend.environment.environment import Environment
from pybackend.environment.hooks import MOST_OUTPUT_BYTES, ShellRun
from pybackend.environment.unpacking import Cancelled
from pybackend.sandbox.model_sandbox import ModelSandbox, ReachableFiles
from pybackend.sandbox.options import MIB, SandboxOptions
from pybackend.sandbox.sandbox import Sandbox
from pybackend_wire.confinement import STRICT, WRITE, Confinement, Ending

_OPTIONS = SandboxOptions(network=False, unix_sockets=False, subprocesses=True)

_PROCESSOR_S = 5
_LIMITS = {"CPU": _PROCESSOR_S, "FSIZE": 16 * MIB, "DATA": 512 * MIB}
_PROCESSES = 256
"""Limit if it has a separate user: the kernel counts all processes of a user."""

_MOST_SAID_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_LOOK_EVERY_S = 0.05
_PATIENCE_S = 20.0
"""Extra time for the process that kills the shell's leftovers."""

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pybackend_stub.sandbox.keeper import main; main(sys.argv[2:])"
)


class ShellRunner:
    """Runs shells for environments, confined at all times, whatever level models have."""

    def __init__(self, sandbox: Sandbox, limit_s: float = 10.0) -> None:
        self._sandbox = sandbox
        self._limit_s = limit_s

    def run(
        self, environment: Environment, directory: Path, command: Sequence[str], cancelled: threading.Event
    ) -> tuple[ShellRun, str]:
        """Run a shell to its end, and kill everything it has started. Blocking: not for the event loop.

        Returns:
            The outcome, and the private directory that the shell had.
        """
        files = ReachableFiles(directory, directory, Path(command[0]), environment)
        confined = ModelSandbox(self._sandbox, f"hooks in {directory}", STRICT, _OPTIONS, files)
        try:
            confinement = _tightened(confined.of_instance(0).confinement)
            return self._run(confinement, command, cancelled), confinement.variables["TMPDIR"] or ""
        finally:
            asyncio.run(confined.close())

    def _run(self, confinement: Confinement, command: Sequence[str], cancelled: threading.Event) -> ShellRun:
        own = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
        arguments = [self._sandbox.places.bundle, str(os.getpid()), str(self._limit_s), *command]
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _START, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=own,  # the host's own Python may need it to start; the shell gets the confinement's variables
            cwd="/",
            start_new_session=True,
        ) as keeper:
            try:
                hearing = _Hearing(keeper)
                with suppress(BrokenPipeError):
                    hearing.tell(confinement.to_json().encode())
                hearing.listen(time.monotonic() + self._limit_s + _PATIENCE_S, cancelled)
            finally:
                keeper.kill()
        if cancelled.is_set():
            raise Cancelled
        return self._outcome(hearing)

    def _outcome(self, hearing: _Hearing) -> ShellRun:
        output, _, told = bytes(hearing.output).rpartition(b"\0")
        if hearing.is_flooded:
            return ShellRun(output, bytes(hearing.said), f"printed more than {MOST_OUTPUT_BYTES >> 20} MiB", 0)
        try:
            ending = msgspec.json.decode(told, type=Ending)
        except (ValueError, msgspec.MsgspecError):
            return ShellRun(bytes(hearing.output), bytes(hearing.said), "was killed together with its supervisor", 0)
        return ShellRun(output, bytes(hearing.said), self._clause(ending.status), ending.left)

    def _clause(self, status: int | None) -> str:
        if status is None:
            return f"exceeded its limit of {self._limit_s:g} s"
        if status < 0:
            return f"was killed by signal {-status}; its limit is {_PROCESSOR_S} s of CPU time"
        return f"ended the shell with status {status}"


class _Hearing:
    """Output and messages of the process that supervises the shell."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper
        self.output = bytearray()
        self.said = bytearray()
        self.is_flooded = False

    def tell(self, text: bytes) -> None:
        assert self._keeper.stdin is not None
        with self._keeper.stdin as stdin:
            stdin.write(text)

    def listen(self, deadline_s: float, cancelled: threading.Event) -> None:
        """Read to the end of file, when no process holds the output any more; the supervisor kills those that do."""
        with selectors.DefaultSelector() as selector:
            for stream in (self._keeper.stdout, self._keeper.stderr):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map() and time.monotonic() < deadline_s:
                if cancelled.is_set():
                    self._keeper.terminate()
                for key, _ in selector.select(_LOOK_EVERY_S):
                    chunk = os.read(key.fd, _CHUNK_BYTES)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    self._take(key.fileobj is self._keeper.stdout, chunk)

    def _take(self, is_output: bool, chunk: bytes) -> None:
        if not is_output:
            self.said += chunk[: _MOST_SAID_BYTES - len(self.said)]
            return
        if self.is_flooded:
            return
        self.output += chunk
        if len(self.output) > MOST_OUTPUT_BYTES:
            self.is_flooded = True
            self._keeper.terminate()


def _tightened(confinement: Confinement) -> Confinement:
    """Restrict further than a model that starts processes: the shell can leave no files and must end within seconds."""
    scratch = os.path.realpath(confinement.variables["TMPDIR"] or "")
    limits = {**confinement.limits, **_LIMITS}
    if confinement.uid >= 0:
        limits["NPROC"] = _PROCESSES
    limits["DATA"] = min(limits["DATA"], confinement.limits["DATA"])
    paths = [(path, letters) for path, letters in confinement.paths if WRITE not in letters or path == scratch]
    return confinement._replace(limits=limits, paths=paths)
