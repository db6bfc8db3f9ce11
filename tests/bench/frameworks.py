"""Models without code: the cost of serving them, over the cost of the library alone on the same model and batch."""

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench import bodies, progress, servers
from tests.bench.framework_models import ADD_SUB, BATCHED, FOREST, IMAGES, LARGE, SMALL, FrameworkModel, write_models
from tests.bench.goals import Goal
from tests.bench.loadgen import Load, LoadResult
from tests.bench.plan import Plan
from tests.bench.turns import Step, take_turns

ADDED_VERSUS_ADD_SUB = 1.0
"""CPU time that serving adds to a small model, against all of add_sub's."""
LARGE_VERSUS_LIBRARY = 1.03
BATCHED_THROUGHPUT_VERSUS_LIBRARY = 0.95


@dataclass(frozen=True)
class FrameworkSample:
    """One round of one model.

    Attributes:
        model: how tables call it.
        round: counted from 0.
        bare_rows_per_s: rows that the library alone computes in a second.
        bare_cpu_us: its CPU time per row, one call right after the other.
        woken_cpu_us: the same if the process waits for another one before each call, as a server's must: caches are
            cold.
        served: the window of load on the server; each request is one row.
    """

    model: str
    round: int
    bare_rows_per_s: float
    bare_cpu_us: float
    woken_cpu_us: float
    served: LoadResult

    @property
    def served_cpu_us(self) -> float:
        """CPU time of host and stub per row."""
        return self.served.host_cpu_us + self.served.stub_cpu_us


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[FrameworkSample]:
    """Let the library and the server compute in turn.

    Raises:
        ServerError: a package that makes or runs the models is not installed.
    """
    repository = scratch / "models"
    try:
        models = write_models(repository)
    except ModuleNotFoundError as error:
        raise servers.ServerError(
            f"{error.name} is not installed: pip install '.[bench]' in a clone of pybackend"
        ) from error
    samples = []
    with launchers[0].start(repository) as server:
        for model in models:
            bodies.check(server.port, model.workload)
        for round_ in range(plan.rounds):
            for model in models:
                rows_per_s, cpu_us = _bare(model, plan)
                woken_cpu_us = _woken(model, plan)
                load = Load(model.connections, plan.duration_s, plan.warm_up_s)
                (window,) = take_turns([server], [Step(model.workload, load, 1)], scratch)
                progress.show(
                    f"{model.workload.name}, the library alone: {rows_per_s:,.0f} rows/s, {cpu_us:,.1f} us of CPU, "
                    f"{woken_cpu_us:,.1f} us after a wait"
                )
                samples.append(
                    FrameworkSample(model.workload.name, round_, rows_per_s, cpu_us, woken_cpu_us, window.result)
                )
    return samples


def _bare(model: FrameworkModel, plan: Plan) -> tuple[float, float]:
    """Rows per second and microseconds of CPU per row of the library alone."""
    for length_s in (plan.warm_up_s, plan.duration_s):
        calls, cpu_s, began_s = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - began_s < length_s:
            model.run()
            calls += 1
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return calls * model.rows / seconds, cpu_s * 1e6 / (calls * model.rows)


def _woken(model: FrameworkModel, plan: Plan) -> float:
    """Microseconds of CPU per row of the library alone, where the process has waited for another one before each call."""
    costs_ns = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        end_s = time.perf_counter() + plan.duration_s / 2
        while time.perf_counter() < end_s:
            other.stdin.write(b".")
            other.stdout.read(1)
            began_ns = time.process_time_ns()
            model.run()
            costs_ns.append(time.process_time_ns() - began_ns)
        other.stdin.close()
    return median(costs_ns) / 1e3 / model.rows


def goals(samples: Sequence[FrameworkSample]) -> list[Goal]:
    """The targets, by ratios within a round; without samples they have none."""
    rounds: dict[int, dict[str, FrameworkSample]] = {}
    for sample in samples:
        rounds.setdefault(sample.round, {})[sample.model] = sample
    whole = [models for models in rounds.values() if {ADD_SUB, SMALL, FOREST, LARGE, IMAGES, BATCHED} <= models.keys()]
    found = [
        Goal(
            f"{name}: CPU that serving adds, against all of add_sub's",
            [
                (models[name].served_cpu_us - models[name].bare_cpu_us) / models[ADD_SUB].served_cpu_us
                for models in whole
            ],
            ADDED_VERSUS_ADD_SUB,
            at_least=False,
        )
        for name in (SMALL, FOREST)
    ]
    large = [models[LARGE].served_cpu_us / models[LARGE].bare_cpu_us for models in whole]
    return [
        *found,
        Goal(f"{LARGE}: CPU against the library alone", large, LARGE_VERSUS_LIBRARY, at_least=False),
        *(
            Goal(
                f"{name}: rows/s against the library alone",
                [models[name].served.infer_per_s / models[name].bare_rows_per_s for models in whole],
                BATCHED_THROUGHPUT_VERSUS_LIBRARY,
                at_least=True,
            )
            for name in (IMAGES, BATCHED)
        ),
    ]


def render(samples: Sequence[FrameworkSample]) -> str:
    """A table of medians over the rounds, as Markdown."""
    lines = [
        "| model | connections | library alone, rows/s | served, rows/s | library alone, CPU us | after a wait | host | stub | foreign cores |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model in dict.fromkeys(sample.model for sample in samples):
        rounds = [sample for sample in samples if sample.model == model]
        figures = [
            f"{median(sample.bare_rows_per_s for sample in rounds):,.0f}",
            f"{median(sample.served.infer_per_s for sample in rounds):,.0f}",
            f"{median(sample.bare_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.woken_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.host_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.stub_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.foreign_cores for sample in rounds):.1f}",
        ]
        lines.append(" | ".join([f"| {model}", str(rounds[0].served.connections), *figures]) + " |")
    return "\n".join(lines)
