"""A cluster of Ray on this machine, with two replicas of the examples' models."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 150.0
EXAMPLES = Path(__file__).parents[3] / "examples"
MODELS = ("add_sub", "accumulate", "to_kelvin")


class Application:
    """``pybackend serve --on=ray`` in a process, with a home directory of its own."""

    def __init__(self, models: Path, home: Path, *flags: str, environment: Mapping[str, str] | None = None) -> None:
        self.models = models
        self.environment = dict(environment or {**os.environ, "HOME": str(home)})
        if environment is None:
            self.environment.pop("RAY_ADDRESS", None)
        self.http_port, self.grpc_port, self.metrics_port = free_ports(3)
        self._output = home / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "pybackend", "serve", str(models), *self.flags, *flags,
                ],
                env=self.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        wait_until(
            lambda: "\nReady after" in self.output or self.process.poll() is not None, "the application is ready", self
        )
        assert self.process.poll() is None, self.output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def command(self, *arguments: str, status: int = 0) -> str:
        """The output of a command of pybackend, as this application's user; that of a failure if it must fail."""
        done = subprocess.run(
            [sys.executable, "-m", "pybackend", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    @property
    def flags(self) -> list[str]:
        """Of the command that runs it, and of those that update it."""
        ports = (
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
        )
        return ["--on=ray", "--model-control-mode=explicit", "--load-model=*", *ports]

    def status(self) -> dict[str, Any]:
        return json.loads(self.command("status", "--on=ray", "--json"))

    def servers(self) -> list[int]:
        """The pids of the replicas' servers."""
        return [
            pid
            for pid, command in processes().items()
            if "pybackend serve" in command and str(self.models) in command and "--allow-client-shm=false" in command
        ]

    def stop(self) -> int:
        """End it by two signals at once, as a shell and a supervisor may send them."""
        self.process.send_signal(signal.SIGINT)
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise


def processes() -> dict[int, str]:
    """All processes with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    """The children of a process."""
    text = "".join((thread / "children").read_text() for thread in Path(f"/proc/{pid}/task").iterdir())
    return [int(word) for word in text.split()]


def family(pid: int) -> set[int]:
    """A process and its descendants."""
    found, waiting = set(), [pid]
    while waiting:
        found.add(pid := waiting.pop())
        with suppress(OSError):
            waiting += children(pid)
    return found


def listening(pids: set[int]) -> dict[int, str]:
    """The ports of TCP where these processes listen, and their names."""
    table = subprocess.run(["ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header"], capture_output=True, text=True, check=True)  # fmt: skip
    rows = re.findall(r":([0-9]+)\s+\S+\s+users:\(\(\"([^\"]*)\",pid=([0-9]+),", table.stdout)
    return {int(port): name for port, name, pid in rows if int(pid) in pids}


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(
    true: Callable[[], object], what: str, application: Application | None = None, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for what has no event of its own."""
    end = time.monotonic() + deadline_s
    while not true():
        if time.monotonic() > end:
            about = (
                ""
                if application is None
                else f"{application.output[-5000:]}\n{application.command('status', '--on=ray', '--json')}"
            )
            raise AssertionError(f"not within {deadline_s} s: {what}\n{about}")
        threading.Event().wait(0.2)


@contextmanager
def running(models: Path, *flags: str) -> Iterator[Application]:
    """The application for the length of a ``with`` block, which must leave nothing behind."""
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
    # Models may read all below /tmp, and Ray makes sockets below it, whose paths must be short.
    home = Path(tempfile.mkdtemp(prefix="h", dir=Path.home()))
    started = Application(models, home, *flags)
    try:
        yield started
    finally:
        status = started.stop()
    assert status == 0, started.output
    left = {pid: command for pid, command in processes().items() if str(home) in command or str(models) in command}
    assert not left
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    models = tmp_path_factory.mktemp("ray") / "models"
    for name in MODELS:
        source = next(EXAMPLES.glob(f"*/model_repository/{name}"))
        shutil.copytree(source, models / name)
    shutil.copytree(Path(__file__).parent / "models", models, dirs_exist_ok=True)
    with running(models, "--replicas=2") as started:
        yield started
