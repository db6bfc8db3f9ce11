"""Measures a server with all models of a repository: the memory and the processor time that it and their processes use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pybackend.errors import PybackendError
from pybackend_addons.ray.kubernetes import Load
from pybackend_client.connection import Connection
from pybackend_client.trial import Request, Trial

_EXAMINED_S = 0.2


def measure_repository(url: str, start_s: float, seconds: float, timeout_s: float) -> tuple[Load, list[str]]:
    """Send random requests to every model at once, one client each, and watch the processes. Blocking.

    ``url``: of a server in this process that has loaded its models. Returns the models, too, that answer no random
    request: they were measured while they did nothing.
    """
    connection = Connection(url, timeout_s)
    names = [row["name"] for row in connection.post_json("/v2/repository/index", {"ready": True})]
    samples: dict[str, tuple[Trial, Request]] = {}
    silent = []
    for name in dict.fromkeys(names):
        trial = Trial(connection, name)
        try:
            samples[name] = trial, trial.sample(trial.configuration(), {})[0]
        except PybackendError:
            silent.append(name)
    end_s = time.monotonic() + seconds
    clients = [threading.Thread(target=_ask, args=(*sample, end_s), daemon=True) for sample in samples.values()]
    began_s, used_s = time.monotonic(), _cpu_s()
    for client in clients:
        client.start()
    memory_bytes = _memory_bytes()
    while time.monotonic() < end_s:
        time.sleep(_EXAMINED_S)
        memory_bytes = max(memory_bytes, _memory_bytes())
    for client in clients:
        client.join()
    cpu = (_cpu_s() - used_s) / (time.monotonic() - began_s)
    return Load(start_s, memory_bytes, cpu), silent


def _ask(trial: Trial, request: Request, end_s: float) -> None:
    while time.monotonic() < end_s:
        try:
            trial.answer(request)
        except PybackendError:  # as a client would: the next request may be answered
            time.sleep(_EXAMINED_S)


def _processes(pid: int) -> Iterator[Path]:
    """The directories in /proc of a process and of its descendants."""
    root = Path(f"/proc/{pid}")
    yield root
    for children in root.glob("task/*/children"):
        for child in _text(children).split():
            yield from _processes(int(child))


def _memory_bytes() -> int:
    """Each page counts once: those of several processes by their shares."""
    lines = [line for root in _processes(os.getpid()) for line in _text(root / "smaps_rollup").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def _cpu_s() -> float:
    """Processor time so far; the 12th and 13th fields behind the command's name are user and system time in ticks."""
    ticks = [_text(root / "stat").rpartition(")")[2].split()[11:13] for root in _processes(os.getpid())]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # the process has ended, or is another user's
        return ""
