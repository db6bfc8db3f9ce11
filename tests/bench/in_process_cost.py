"""Calls to a server in the caller's process: CPU time of that process, which is caller and host, per small call."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pybackend
from tests.bench import procstat, progress, repositories
from tests.bench.plan import Plan

COROUTINES, THREADS = "coroutines", "threads"
AT_ONCE = 16
_WARM_UP_CALLS = 50 * AT_ONCE

_ARRAY = np.arange(4, dtype=np.float32)
_INPUTS = {"INPUT0": _ARRAY, "INPUT1": _ARRAY}


@dataclass(frozen=True)
class InProcessSample:
    """One round of calls, 16 at a time.

    Attributes:
        callers: ``coroutines`` or ``threads``.
        calls: how many there were.
        cpu_us: CPU time per call, without that of the model's process.
        calls_per_s: finished calls per second.
        foreign_cores: CPU time of anything else on the machine meanwhile, in cores; that of the model's process is part
            of it.
    """

    callers: str
    round: int
    calls: int
    cpu_us: float
    calls_per_s: float
    foreign_cores: float


def measure(plan: Plan, scratch: Path) -> list[InProcessSample]:
    """Call add_sub from 16 coroutines of one event loop, and from 16 threads, in turns."""
    repositories.write_add_sub(scratch, [repositories.ADD_SUB])
    samples = []
    with pybackend.Server(model_repository=scratch) as server:
        model = server.model(repositories.ADD_SUB)
        kinds: dict[str, Callable[[pybackend.Model, int], None]] = {COROUTINES: _by_coroutines, THREADS: _by_threads}
        for call in kinds.values():
            call(model, _WARM_UP_CALLS)
        for round_ in range(plan.rounds):
            for callers, call in kinds.items():
                samples.append(_sample(callers, round_, lambda call=call: call(model, plan.in_process_calls), plan))
    return samples


def _sample(callers: str, round_: int, run: Callable[[], None], plan: Plan) -> InProcessSample:
    machine_ns, began, own_s = procstat.machine_cpu_ns()[0], time.perf_counter(), time.process_time()
    run()
    own_s, seconds = time.process_time() - own_s, time.perf_counter() - began
    foreign = (procstat.machine_cpu_ns()[0] - machine_ns) / 1e9 - own_s
    cpu_us = own_s / plan.in_process_calls * 1e6
    progress.show(f"in the process, {AT_ONCE} {callers}, round {round_ + 1}: {cpu_us:.1f} us of CPU per call")
    return InProcessSample(
        callers, round_, plan.in_process_calls, cpu_us, plan.in_process_calls / seconds, foreign / seconds
    )


def _by_coroutines(model: pybackend.Model, calls: int) -> None:
    async def call() -> None:
        for _ in range(calls // AT_ONCE):
            response = await model.async_infer(inputs=_INPUTS)
            _check(response)

    async def main() -> None:
        await asyncio.gather(*(call() for _ in range(AT_ONCE)))

    asyncio.run(main())


def _by_threads(model: pybackend.Model, calls: int) -> None:
    def call() -> None:
        for _ in range(calls // AT_ONCE):
            _check(model.infer(inputs=_INPUTS).response)

    threads = [threading.Thread(target=call) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _check(response: pybackend.InferenceResponse) -> None:
    if np.asarray(response.outputs["OUTPUT0"])[3] != 2 * _ARRAY[3]:
        raise RuntimeError(f"wrong answer: {response}")
