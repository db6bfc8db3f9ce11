"""Builds the load generator and drives a server with it, reading the server's clocks at both ends of the window."""

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import procstat

_FOLDER = Path(__file__).parent
_COMMON = _FOLDER / "loadgen.h"
_HTTP, _GRPC = "loadgen", "loadgen_grpc"
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
BUILD_DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "bench"
# Beyond warm-up and window: for the last reply to arrive, and for the report to be written.
GRACE_S = 60.0


class LoadError(Exception):
    """The load generator could not be built, or could not drive the server; the text says why."""


@dataclass(frozen=True)
class Load:
    """How a server is driven.

    Attributes:
        connections: requests in flight at any time, each on a connection of its own.
        duration_s: the measured window.
        warm_up_s: what goes before it.
        requests: the window lasts on until so many replies came.
    """

    connections: int
    duration_s: float
    warm_up_s: float
    requests: int = 1


@dataclass(frozen=True)
class GrpcCall:
    """How a request is sent over gRPC.

    Attributes:
        method: ``/package.Service/Method``.
        streams: requests in flight on each connection.
        messages: of a streaming method, those that answer one request; 0 for a unary method.
        traced: each call has a trace context of its own.
    """

    method: str
    streams: int = 1
    messages: int = 0
    traced: bool = False


@dataclass(frozen=True)
class LoadResult:
    """What one window showed. Rates are per reply with status 200; latencies are those of the client.

    Attributes:
        replies: replies with status 200.
        errors: other replies, and broken connections.
        first_error: what the first of them said.
        host_cpu_us: CPU time of the server's process per reply.
        stub_cpu_us: CPU time of its descendants per reply, but for front ends.
        front_end_cpu_us: CPU time of these per reply.
        client_cpu_us: CPU time of the load generator per reply.
        foreign_cores: CPU time that anything else on the machine used, in cores. The machine's own count moves in
            ticks, the processes' clocks do not, so that a quiet machine may come out a little below zero.
        steal_cores: CPU time that the hypervisor kept from the machine, in cores.
    """

    connections: int
    replies: int
    errors: int
    first_error: str
    seconds: float
    infer_per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    reply_bytes: int
    bytes_sent: int
    bytes_received: int
    host_cpu_us: float
    stub_cpu_us: float
    front_end_cpu_us: float
    client_cpu_us: float
    foreign_cores: float
    steal_cores: float


def load_median(windows: Iterable[LoadResult], value: Callable[[LoadResult], float]) -> float:
    return statistics.median(map(value, windows))


def build(name: str = _HTTP) -> Path:
    """Compile a load generator unless this very source was compiled before; return the program.

    Args:
        name: ``loadgen`` or ``loadgen_grpc``.

    Raises:
        LoadError: there is no C compiler, or it refuses.
    """
    source = _FOLDER / f"{name}.c"
    digest = hashlib.sha256(_COMMON.read_bytes() + source.read_bytes()).hexdigest()[:12]
    program = BUILD_DIRECTORY / f"{name}-{digest}"
    if program.exists():
        return program
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise LoadError("the load generator is C: install a compiler (Debian: apt-get install gcc libc6-dev)")
    BUILD_DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD_DIRECTORY) as scratch:
        output = Path(scratch) / "loadgen"
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", str(output), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise LoadError(f"{compiler} refused {source.name}: {done.stderr.strip()}")
        output.replace(program)
    return program


def drive(
    port: int,
    tree: procstat.ProcessTree,
    request: Path,
    load: Load,
    call: GrpcCall | None = None,
    in_turns: int = 0,
) -> LoadResult:
    """Send one request over and over, or several in turns, and measure.

    Args:
        port: where the server listens on 127.0.0.1.
        tree: the server's processes, whose clocks are read.
        request: file with the whole HTTP request, or with the message of a gRPC call.
        load: connections and times.
        call: how a gRPC call is sent; None for HTTP.
        in_turns: so many requests are in the file, each behind its size; 0 if it is one.

    Raises:
        LoadError: the server could not be reached, or did not answer one request properly.
    """
    limit_s = load.warm_up_s + load.duration_s + GRACE_S
    command = [
        str(build(_HTTP if call is None else _GRPC)),
        "-p",
        str(port),
        "-f",
        str(request),
        "-c",
        str(load.connections),
    ]
    command += ["-w", str(load.warm_up_s), "-d", str(load.duration_s), "-n", str(load.requests), "-t", str(limit_s)]
    if call is not None:
        command += ["-m", call.method, "-s", str(call.streams), "-e", str(call.messages)]
        command += ["-x"] if call.traced else []
    if in_turns:
        command += ["-k", str(in_turns)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        try:
            client.stdout.readline()  # "begin"
            before = procstat.cpu_times(tree)
            client.stdout.readline()  # "end"
            after = procstat.cpu_times(tree)
        except ProcessLookupError as error:
            client.kill()
            raise LoadError(f"process {error} of the server ended while it was measured") from error
        report, complaint = client.stdout.read(), client.stderr.read()
    if client.returncode != 0:
        raise LoadError(complaint.strip())
    measured: dict[str, Any] = json.loads(report)
    if not measured["replies"]:
        raise LoadError(f"no request succeeded: {measured['first_error'] or 'no reply in time'}")
    return _result(measured, after.since(before))


def _result(measured: dict[str, Any], cpu: procstat.CpuTimes) -> LoadResult:
    replies, seconds, client_s = measured["replies"], measured["seconds"], measured["client_cpu_s"]
    foreign_s = (cpu.machine_ns - cpu.host_ns - cpu.stub_ns - cpu.front_end_ns) / 1e9 - client_s
    names = ("connections", "errors", "first_error", "infer_per_s", "p50_us", "p90_us", "p99_us", "max_us")
    counts = ("reply_bytes", "bytes_sent", "bytes_received", "client_cpu_us")
    return LoadResult(
        replies=replies,
        seconds=seconds,
        host_cpu_us=cpu.host_ns / 1e3 / replies,
        stub_cpu_us=cpu.stub_ns / 1e3 / replies,
        front_end_cpu_us=cpu.front_end_ns / 1e3 / replies,
        foreign_cores=foreign_s / seconds,
        steal_cores=cpu.steal_ns / 1e9 / seconds,
        **{name: measured[name] for name in (*names, *counts)},
    )
