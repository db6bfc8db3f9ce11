"""``make bench-ray``: what the entrance of an application on Ray costs, and what is lost when parts of it are killed.

Everything runs on this machine: two of pybackend's servers, an application with two replicas, and plain HAProxy before
the same replicas. They take turns, and each figure is the median of the rounds. The second part kills one thing after
the other under load, on a cluster of two of Ray's nodes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import tritonclient.http as httpclient

from pybackend_addons.ray.cluster import KEY_HEADER
from pybackend_addons.ray.haproxy import find_program
from tests.addons.ray.conftest import Application, children, free_ports, processes
from tests.addons.ray.machines import Machines, machines
from tests.addons.ray.test_failures import Load as Callers
from tests.addons.ray.test_failures import haproxy, pid_of
from tests.bench import bodies, grpc_workloads, repositories
from tests.bench.loadgen import Load, LoadResult, drive
from tests.bench.progress import show
from tests.bench.report import section
from tests.bench.servers import RunningServer, pybackend_launcher
from tests.bench.turns import Step, take_turns

BARE, PLAIN, ENTRANCE = "a bare server", "plain HAProxy before the same replicas", "the entrance"
SLOW = "two_ms"
_SLOW_CODE = """\
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            left, right = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            time.sleep(0.002)
            answers.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)])
            )
        return answers
"""
_PLAIN = """\
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    option http-no-delay
    balance leastconn
    http-reuse always
frontend http
    bind 127.0.0.1:{http}
    http-request set-header {header} {key}
    default_backend http
backend http
{http_servers}
frontend grpc
    bind 127.0.0.1:{grpc} proto h2
    http-request set-header {header} {key}
    default_backend grpc
backend grpc
{grpc_servers}
"""
_CONNECTIONS = 16
_FULL_STRENGTH_S = 180.0
_BEFORE_S, _AFTER_S = 1.0, 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables as Markdown."""
    parser = argparse.ArgumentParser(prog="make bench-ray")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything takes its turn; 5 if not given")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window; 2 if not given")
    parser.add_argument("--only", choices=("speed", "failures"), help="one part")
    given = parser.parse_args(arguments)
    tables = []
    with tempfile.TemporaryDirectory() as scratch:
        models = Path(scratch) / "models"
        repositories.write_add_sub(models, [repositories.ADD_SUB])
        repositories.write_pairwise(models, {SLOW: _SLOW_CODE})
        if given.only != "failures":
            tables.append(_speed(models, Path(scratch), given.rounds, given.seconds))
        if given.only != "speed":
            tables.append(_failures(models))
    sys.stdout.write("\n\n".join(tables) + "\n")
    return 0


# Speed


def _speed(models: Path, scratch: Path, rounds: int, seconds: float) -> str:
    bare = pybackend_launcher(BARE)
    with ExitStack() as stack:
        one, two = (stack.enter_context(bare.start_with_grpc(models)) for _ in range(2))
        application = stack.enter_context(_application(models))
        plain = stack.enter_context(_plain_haproxy(scratch, application))
        entrance = RunningServer(ENTRANCE, application.http_port, haproxy(application), 0.0, application.grpc_port)
        rows = []
        for protocol, fast, slow in (
            ("HTTP", bodies.add_sub_binary(), bodies.add_sub_binary(SLOW)),
            ("gRPC", grpc_workloads.add_sub(), grpc_workloads.add_sub(model=SLOW)),
        ):
            alone, many = Load(1, seconds, 0.3), Load(_CONNECTIONS, seconds, 0.3)
            latency = _by_server([one, plain, entrance], Step(fast, alone, rounds), scratch)
            added = [
                (through.p50_us - direct.p50_us) / 1000
                for through, direct in zip(latency[ENTRANCE], latency[BARE], strict=True)
            ]
            rows.append(
                [protocol, "added latency of one caller (p50)", f"{statistics.median(added):.2f} ms", "at most 1 ms"]
            )
            found = _by_server([plain, entrance], Step(fast, many, rounds), scratch)
            rows.append(
                [
                    protocol,
                    "requests per second, over plain HAProxy's",
                    _ratio(found[ENTRANCE], found[PLAIN]),
                    "at least 0.95",
                ]
            )
            cpu = [
                one.host_cpu_us / other.host_cpu_us for one, other in zip(found[ENTRANCE], found[PLAIN], strict=True)
            ]
            measured = f"{statistics.median(cpu):.2f} ({min(cpu):.2f} to {max(cpu):.2f})"
            rows.append([protocol, "CPU time of HAProxy for each request, over plain HAProxy's", measured, ""])
            sums, through_entrance = [], []
            for _ in range(rounds):
                sums.append(_both([one, two], Step(slow, Load(_CONNECTIONS // 2, seconds, 0.3), 1), scratch))
                through_entrance += _by_server([entrance], Step(slow, many, 1), scratch)[ENTRANCE]
            share = statistics.median(
                each.infer_per_s / total for each, total in zip(through_entrance, sums, strict=True)
            )
            rows.append(
                [
                    protocol,
                    f"requests per second of a model that takes 2 ms, over the sum of two bare servers ({statistics.median(sums):,.0f})",
                    f"{share:.2f}",
                    "at least 0.8",
                ]
            )
            for name, results in latency.items():
                show(
                    f"{protocol}, one caller, {name}: p50 {statistics.median(each.p50_us for each in results):,.0f} us"
                )
    return section("Speed", ("protocol", "what", "measured", "goal"), rows)


def _by_server(running: Sequence[RunningServer], step: Step, scratch: Path) -> dict[str, list[LoadResult]]:
    found: dict[str, list[LoadResult]] = {}
    for sample in take_turns(running, [step], scratch):
        found.setdefault(sample.server, []).append(sample.result)
    return found


def _both(running: Sequence[RunningServer], step: Step, scratch: Path) -> float:
    """The sum of the requests per second of servers that are driven at the same time."""
    request = scratch / "both"
    request.write_bytes(step.workload.request)
    call = getattr(step.workload, "call", None)
    with ThreadPoolExecutor() as pool:
        results = pool.map(
            lambda server: drive(server.grpc_port if call else server.port, server.tree(), request, step.load, call),
            running,
        )
        return sum(result.infer_per_s for result in results)


def _ratio(results: Sequence[LoadResult], others: Sequence[LoadResult]) -> str:
    ratios = [one.infer_per_s / other.infer_per_s for one, other in zip(results, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


@contextmanager
def _plain_haproxy(scratch: Path, application: Application) -> Iterator[RunningServer]:
    """Before the application's replicas, which demand its key."""
    http, grpc = free_ports(2)
    replicas = application.status()["replicas"]
    lines = {
        "http_servers": "\n".join(
            f"    server {each['name']} {each['address']}:{each['http_port']}" for each in replicas
        ),
        "grpc_servers": "\n".join(
            f"    server {each['name']} {each['address']}:{each['grpc_port']} proto h2" for each in replicas
        ),
    }
    key = next(Path(application.environment["HOME"]).glob(".ray/pybackend/replica-*/key")).read_text().strip()
    file = scratch / "plain.cfg"
    file.write_text(_PLAIN.format(http=http, grpc=grpc, header=KEY_HEADER, key=key, **lines))
    with subprocess.Popen([find_program(), "-db", "-f", str(file)], stderr=subprocess.DEVNULL) as process:
        try:
            yield RunningServer(PLAIN, http, process.pid, 0.0, grpc)
        finally:
            process.terminate()


@contextmanager
def _home() -> Iterator[Path]:
    """A home directory: paths of Ray's sockets must be short, and models may read below /tmp."""
    home = Path(tempfile.mkdtemp(prefix="h", dir=Path.home()))
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _application(models: Path, cluster: Machines | None = None) -> Iterator[Application]:
    with ExitStack() as stack:
        home = stack.enter_context(_home()) if cluster is None else Path(cluster.environment["HOME"])
        environment = None if cluster is None else cluster.environment
        started = Application(models, home, "--replicas=2", "--http-address=127.0.0.1", environment=environment)
        try:
            yield started
        finally:
            started.stop()


# Failures


def _failures(models: Path) -> str:
    rows = []
    with _home() as home, machines(home, 2) as cluster, _application(models, cluster) as application:
        kill = {
            "a model's process": lambda: _kill_model(application),
            "a replica's server": lambda: _replaced(
                application, lambda: os.kill(application.servers()[0], signal.SIGKILL)
            ),
            "HAProxy": lambda: _kill(lambda: haproxy(application)),
            "the coordinator": lambda: _kill(lambda: pid_of("ServeReplica:pybackend:Coordinator", application)),
            "Ray Serve's controller": lambda: _kill(lambda: pid_of("ServeController", application)),
            "a machine with a replica; another one is free": lambda: _replaced(application, cluster.kill, cluster.add),
        }
        for what, end in kill.items():
            show(f"killing {what}")
            rows.append([what, *_under_load(application, end)])
    head = ("killed", "answered", "lost", "reasons", "until full strength")
    return section("What is killed under load, with two callers over each protocol", head, rows)


def _under_load(application: Application, end: Callable[[], Callable[[], bool]]) -> list[str]:
    callers = Callers(application, callers=2)
    with callers.running(), httpclient.InferenceServerClient(application.http) as client:
        time.sleep(_BEFORE_S)
        is_back = end()
        began_s = time.monotonic()
        while not (is_back() and _is_ready(client)):
            if time.monotonic() - began_s > _FULL_STRENGTH_S:
                raise RuntimeError(
                    f"not at full strength again after {_FULL_STRENGTH_S:.0f} s: {application.output[-3000:]}"
                )
            time.sleep(0.05)
        full_s = time.monotonic() - began_s
        time.sleep(_AFTER_S)
    reasons = Counter(_reason(failure) for failure in callers.failures)
    listed = "; ".join(f"{count} times {reason}" for reason, count in reasons.items()) or "-"
    return [f"{callers.answered:,}", str(len(callers.failures)), listed, f"{full_s:.1f} s"]


def _is_ready(client: httpclient.InferenceServerClient) -> bool:
    with suppress(Exception):  # HAProxy may be the one that was killed
        return bool(client.is_server_ready())
    return False


def _reason(failure: str) -> str:
    """What tells failures of a kind apart: without addresses and quotes."""
    protocol = "HTTP" if ".http" in failure else "gRPC"
    texts = (
        "RST_STREAM",
        "Socket closed",
        "status: 503",
        "broke: whether it has run",
        "no replica can take",
        "connection closed",
        "Connection reset",
        "Connection refused",
        "recvmsg",
        "GOAWAY",
    )
    known = next((text for text in texts if text in failure), re.sub(r"\s+", " ", failure)[-120:])
    return f"{protocol}: `{known}`"


def _kill(find: Callable[[], int]) -> Callable[[], bool]:
    """Kill a process. Returns whether another one has taken its place."""
    victim = find()
    os.kill(victim, signal.SIGKILL)

    def is_back() -> bool:
        with suppress(ValueError, IndexError, OSError):
            return victim not in processes() and find() != victim
        return False

    return is_back


def _kill_model(application: Application) -> Callable[[], bool]:
    server = application.servers()[0]
    before = set(children(server))
    os.kill(max(before), signal.SIGKILL)
    return lambda: len(now := set(children(server))) == len(before) and now != before


def _replaced(
    application: Application, kill: Callable[[], None], prepare: Callable[[], None] = lambda: None
) -> Callable[[], bool]:
    """Kill what has a replica. Returns whether there are as many again."""
    prepare()
    before = set(application.servers())
    kill()
    return lambda: len(now := set(application.servers())) == len(before) and now != before


if __name__ == "__main__":
    raise SystemExit(main())
