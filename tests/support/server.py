"""A ``pybackend serve`` process on free ports, and the HTTP that tests speak to it."""

from __future__ import annotations

import codecs
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.process.diagnostics_key import HEADER, key_of
from pybackend.process.warden_program import NAME as WARDEN_NAME
from pybackend_wire.zygote import ARGUMENT as ZYGOTE_ARGUMENT
from pybackend_wire.zygote import SPARE_NAME, ZYGOTE_NAME
from tests.support.warm_start import WarmProcess, warm_process

DEADLINE_S = 60
"""For what takes a second or two: a machine may be busy with other things."""


@dataclass(frozen=True)
class Reply:
    """An HTTP reply; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json", self
        return self.json["error"]


_HELPERS = {ZYGOTE_NAME, SPARE_NAME, WARDEN_NAME}


class ServerProcess:
    """A server that was started; its output is collected as it comes."""

    def __init__(
        self,
        repositories: list[Path],
        *flags: str,
        python: Sequence[str] = (sys.executable,),
        command: str = "serve",
        **popen: Any,
    ) -> None:
        arguments = [f"--model-repository={repository}" for repository in repositories]
        ports = [
            "--http-address=127.0.0.1",
            "--http-port=0",
            "--grpc-address=127.0.0.1",
            "--grpc-port=0",
            "--metrics-port=0",
        ]
        self.process = _start([command, *arguments, *ports, *flags], python, popen)
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._chunks: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        arrival = select.poll()
        arrival.register(self._pipe, select.POLLIN)
        while not self._ended:
            arrival.poll()
            self._take()

    def _take(self) -> None:
        """Read what there is."""
        with self._changed:
            while not self._ended:
                try:
                    data = os.read(self._pipe, 1 << 16)
                except BlockingIOError:
                    break
                self._ended = not data
                self._chunks.append(self._decode(data, final=self._ended))
            self._changed.notify_all()

    def unheard(self) -> AbstractContextManager[object]:
        """While this lasts, nobody reads what the server prints."""
        return self._changed

    @property
    def output(self) -> str:
        """All that the server, and its models, have printed so far, up to this moment."""
        with self._changed:
            self._take()
            self._chunks = ["".join(self._chunks)]
            return self._chunks[0]

    def wait_for(self, pattern: str, deadline_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until the output matches; fails when the server ends without, or when the deadline passes."""
        compiled = re.compile(pattern)
        end = time.monotonic() + deadline_s
        with self._changed:
            while True:
                output = self.output
                found = compiled.search(output)
                if found:
                    return found
                left = end - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(f"no {pattern!r} in the server's output:\n{output}")
                self._changed.wait(left)

    @property
    def port(self) -> int:
        return int(self.wait_for(r"Started HTTPService at [0-9.]+:(\d+)")[1])

    @property
    def url(self) -> str:
        """``host:port``, as tritonclient takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_url(self) -> str:
        """``host:port`` of the gRPC endpoint."""
        return self.wait_for(r"Started GRPCInferenceService at ([0-9.]+:\d+)")[1]

    @property
    def metrics_port(self) -> int:
        return int(self.wait_for(r"Started Metrics Service at [0-9.]+:(\d+)")[1])

    def request(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Reply:
        """One HTTP request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=deadline_s)
        try:
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def diagnostics(self, path: str) -> Reply:
        """GET below ``/v2/diagnostics``, with the key that programs of the server's user find."""
        with socket.create_connection(("127.0.0.1", self.port)) as connected:
            key = key_of(connected)
        return self.request("GET", f"/v2/diagnostics/{path}", headers={HEADER: key})

    def infer(
        self, model: str, body: bytes | str | dict[str, Any] | None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """POST to a model's infer route."""
        return self.request("POST", f"/v2/models/{model}/infer", body, headers)

    def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page by its name and labels."""
        text = self.request("GET", "/metrics", port=self.metrics_port).body.decode()
        samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    def wait_until(self, path: str, status: int, deadline_s: float = DEADLINE_S) -> None:
        """Ask until a route answers with this status."""
        end = time.monotonic() + deadline_s
        while True:
            try:
                got: object = self.get(path).status
            except ConnectionError as error:  # it stops listening before it ends
                got = error
            if got == status:
                return
            gone = self.process.poll() is not None or time.monotonic() > end
            assert not gone, f"{path} still answers {got}, not {status}:\n{self.output}"
            threading.Event().wait(0.02)

    def wait_ready(self) -> ServerProcess:
        self.wait_until("/v2/health/ready", 200)
        return self

    def stub_pids(self) -> list[int]:
        """The live processes that are, or are to be, instances of models."""
        # Each process is judged in one look at the children: a helper that begins between two looks is no stub.
        return [pid for pid in self.child_pids() if not _helps(pid)]

    def helper_pids(self) -> list[int]:
        """The live processes that run no model."""
        return [pid for pid in self.child_pids() if _helps(pid)]

    def zygote_pids(self) -> list[int]:
        """The live processes that others are forked from."""
        return [pid for pid in self.child_pids() if name_of(pid) == ZYGOTE_NAME]

    def has_warden(self) -> bool:
        """Whether the process is there that ends what models leave behind, should the server be killed."""
        return WARDEN_NAME in map(name_of, self.child_pids())

    def child_pids(self) -> list[int]:
        """The live processes that the server has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def stop(self, signal_number: int = signal.SIGTERM, deadline_s: float = DEADLINE_S) -> int:
        """Send a signal, wait for the end, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.wait(deadline_s)

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for the end and return the exit status."""
        try:
            return self.process.wait(deadline_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._reader.join(DEADLINE_S)
            # Closing what a thread reads would wait for that thread, for ever and deaf to time-outs.
            assert not self._reader.is_alive(), f"what the server has started outlives it:\n{self.output}"
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def serving(
    *repositories: Path, flags: tuple[str, ...] = (), ready: bool = True, **popen: Any
) -> Iterator[ServerProcess]:
    """A server for the length of a ``with`` block; it is stopped, or killed, whatever happens in there.

    Args:
        repositories: of models.
        flags: of the command line.
        ready: whether to wait until it is.
        popen: arguments of ``subprocess.Popen``, or ``limits`` of ``warm_process``.
    """
    server = ServerProcess(list(repositories), *flags, **popen)
    try:
        yield server.wait_ready() if ready else server
    finally:
        if server.process.stdout is not None and not server.process.stdout.closed:
            server.stop()


def _start(arguments: list[str], python: Sequence[str], popen: dict[str, Any]) -> subprocess.Popen[bytes] | WarmProcess:
    if popen.keys() <= {"env", "cwd", "limits"} and [*python] == [sys.executable]:
        warm = warm_process(arguments, **popen)
        if warm is not None:
            return warm
    assert "limits" not in popen, "only a server that is forked can have other limits"
    return subprocess.Popen(
        [*python, "-m", "pybackend", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **popen,
    )


def _helps(pid: int) -> bool:
    """Whether a process runs no model, now or once it has begun."""
    name = name_of(pid)
    return name in _HELPERS or name.startswith("front end ") or _begins_to_help(pid)


def _begins_to_help(pid: int) -> bool:
    """Whether a process will be called a helper once it has begun."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    helps = {ZYGOTE_ARGUMENT.encode(), b"pybackend_stub.host_program"}
    return not helps.isdisjoint(arguments) or any(each.endswith(b"warden_program.py") for each in arguments)


def name_of(pid: int) -> str:
    """What ``ps`` calls a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def free_of_processes(pids: list[int], deadline_s: float = DEADLINE_S) -> bool:
    """Wait until none of these processes exists any more; False if some still do after the deadline.

    One that has ended, and whose parent has too, counts as gone: when the system's first process reaps it is not ours.
    """
    end = time.monotonic() + deadline_s
    while any(_exists(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        threading.Event().wait(0.01)
    return True


def _exists(pid: int) -> bool:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return (state, parent) != ("Z", "1")
