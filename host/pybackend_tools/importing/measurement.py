"""Measures a served model: latency at one client, and the processor time and memory of the model's process."""

from __future__ import annotations

import http.client
import json
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pybackend.errors import ServerError
from pybackend.process.warden_program import NAME as WARDEN_NAME
from pybackend_wire.zygote import SPARE_NAME, ZYGOTE_NAME

_WARM_UP, _MOST_REQUESTS, _LONGEST_S = 5, 500, 3.0
_HELPERS = {WARDEN_NAME, SPARE_NAME, ZYGOTE_NAME}


@dataclass(frozen=True)
class Measures:
    """The figures of one measurement."""

    start_s: float  # from the load to readiness
    latency_p50_s: float  # half of the requests of one client took longer
    cpu_s: float | None  # processor time of the model's process for a request; None if it cannot be read
    memory_bytes: int | None  # resident memory of the model's process; None likewise
    requests: int


def measure(url: str, path: str, document: object, start_s: float) -> Measures:
    """Send a request many times, one after the other, over one connection. Blocking, for about three seconds.

    ``url``: of a server in this process with one model. Raises ServerError if the model refuses the request.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    body = json.dumps(document).encode()

    def ask() -> float:
        began_s = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ServerError(f"the model answers a request, and refuses it later: {content.decode(errors='replace')}")
        return time.perf_counter() - began_s

    try:
        for _ in range(_WARM_UP):
            ask()
        pids = model_pids()
        before = _cpu_s(pids)
        latencies: list[float] = []
        while len(latencies) < _MOST_REQUESTS and sum(latencies) < _LONGEST_S:
            latencies.append(ask())
        after = _cpu_s(pids)
    finally:
        connection.close()
    cpu_s = None if before is None or after is None else (after - before) / len(latencies)
    return Measures(start_s, statistics.median(latencies), cpu_s, _memory_bytes(pids), len(latencies))


def model_pids() -> list[int]:
    """The processes of models of a server in this process."""
    pid = os.getpid()
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if _text(child, "comm").strip() not in _HELPERS]


def _cpu_s(pids: list[int]) -> float | None:
    """The processor time of all threads so far, in seconds; the first number of schedstat is in ns."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                total += int(_text(pid, f"task/{thread}/schedstat").split()[0])
        except (OSError, IndexError, ValueError):
            return None
    return total / 1e9 if pids else None


def _memory_bytes(pids: list[int]) -> int | None:
    lines = [line for pid in pids for line in _text(pid, "status").splitlines() if line.startswith("VmRSS:")]
    return sum(int(line.split()[1]) for line in lines) * 1024 or None


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
