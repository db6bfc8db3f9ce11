"""Models without code: the cost of serving them, over the cost of the library alone on the same model and batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.bench import bodies, progress, repositories, servers
from tests.bench.loadgen import Load, LoadResult
from tests.bench.plan import Plan
from tests.bench.turns import Step, take_turns

_SMALL, _LARGE, _BATCHED = "onnxruntime: small network", "onnxruntime: convolutions", "onnxruntime: batches of 16"
_PYTHON = "add_sub, written in Python with numpy"
"""The yardstick of the small network."""
_BATCH = 16
_THREADS = 1
"""Of the library, both alone and served: a client and the server need the other core."""


@dataclass(frozen=True)
class FrameworkSample:
    """One round of one model.

    Attributes:
        model: how tables call it.
        round: counted from 0.
        bare_rows_per_s: rows that the library alone computes in a second.
        bare_cpu_us: its CPU time per row.
        served: the window of load on the server; each request is one row.
    """

    model: str
    round: int
    bare_rows_per_s: float
    bare_cpu_us: float
    served: LoadResult


@dataclass(frozen=True)
class _Model:
    """A model, on disk and in this process.

    Attributes:
        workload: a request of one row.
        connections: requests in flight.
        rows: of a call of the library alone.
        run: that call.
    """

    workload: bodies.Workload
    connections: int
    rows: int
    run: Callable[[], Any]


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[FrameworkSample]:
    """Let the library and the server compute in turn.

    Raises:
        ServerError: a package that makes or runs the models is not installed.
    """
    repository = scratch / "models"
    try:
        models = _models(repository)
    except ModuleNotFoundError as error:
        raise servers.ServerError(f"{error.name} is not installed: pip install 'pybackend[onnx]' onnx") from error
    samples = []
    with launchers[0].start(repository) as server:
        for model in models:
            bodies.check(server.port, model.workload)
        for round_ in range(plan.rounds):
            for model in models:
                rows_per_s, cpu_us = _bare(model, plan)
                load = Load(model.connections, plan.duration_s, plan.warm_up_s)
                (window,) = take_turns([server], [Step(model.workload, load, 1)], scratch)
                progress.show(
                    f"{model.workload.name}, the library alone: {rows_per_s:,.0f} rows/s, {cpu_us:,.1f} us of CPU"
                )
                samples.append(FrameworkSample(model.workload.name, round_, rows_per_s, cpu_us, window.result))
    return samples


def _bare(model: _Model, plan: Plan) -> tuple[float, float]:
    """Rows per second and microseconds of CPU per row of the library alone."""
    for length_s in (plan.warm_up_s, plan.duration_s):
        calls, cpu_s, began_s = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - began_s < length_s:
            model.run()
            calls += 1
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return calls * model.rows / seconds, cpu_s * 1e6 / (calls * model.rows)


def _models(repository: Path) -> list[_Model]:
    from onnx import TensorProto, helper

    from tests.backends.onnxruntime import graphs

    random = np.random.default_rng(0)
    small = graphs.dense(repository / "small" / "1" / "model.onnx", random, [16, 32, 4])
    batched = graphs.dense(repository / "batched" / "1" / "model.onnx", random, [256, 1024, 1024, 16])
    weights = [(random.standard_normal((64, 64, 3, 3)) * 0.02).astype(np.float32) for _ in range(10)]
    nodes, name = [], "x"
    for number in range(len(weights)):
        nodes.append(helper.make_node("Conv", [name, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        name = f"r{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [name]))
    large = graphs.save(
        repository / "convolutions" / "1" / "model.onnx",
        [*nodes, helper.make_node("Identity", [name], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 64, 32, 32])],
        [("y", TensorProto.FLOAT, ["n", 64, 32, 32])],
        initial=[graphs.initial(f"w{number}", array) for number, array in enumerate(weights)],
    )
    one = f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{_THREADS}" }} }}\n'
    alone = "max_batch_size: 16\n" + one
    for model, text in (
        ("small", alone),
        ("convolutions", alone),
        ("batched", f"max_batch_size: {_BATCH}\ndynamic_batching {{ max_queue_delay_microseconds: 2000 }}\n" + one),
    ):
        (repository / model / "config.pbtxt").write_text(text)
    repositories.write_add_sub(repository, [repositories.ADD_SUB])
    left, right = bodies.add_sub_inputs().values()
    row = random.standard_normal((1, 256)).astype(np.float32)
    return [
        _Model(replace(bodies.add_sub_binary(), name=_PYTHON), 8, 1, lambda: (left + right, left - right)),
        _model(_SMALL, "small", small, random.standard_normal((1, 16)).astype(np.float32), 8),
        _model(_LARGE, "convolutions", large, random.standard_normal((1, 64, 32, 32)).astype(np.float32), 2),
        _model(_BATCHED, "batched", batched, row, 2 * _BATCH, rows=_BATCH),
    ]


def _model(name: str, model: str, path: Path, row: np.ndarray, connections: int, rows: int = 1) -> _Model:
    """A model with the input ``x`` and the output ``y``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    session = onnxruntime.InferenceSession(path, options)
    inputs: Mapping[str, np.ndarray] = {"x": np.repeat(row, rows, axis=0)}
    expected = session.run(["y"], {"x": row})[0]
    workload = bodies.rows_of_model(name, model, {"x": row}, {"y": expected})
    return _Model(workload, connections, rows, lambda: session.run(["y"], inputs))


def render(samples: Sequence[FrameworkSample]) -> str:
    """A table of medians over the rounds, as Markdown."""
    lines = [
        "| model | connections | library alone, rows/s | served, rows/s | library alone, CPU us | host | stub | foreign cores |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for model in dict.fromkeys(sample.model for sample in samples):
        rounds = [sample for sample in samples if sample.model == model]
        figures = [
            f"{median(sample.bare_rows_per_s for sample in rounds):,.0f}",
            f"{median(sample.served.infer_per_s for sample in rounds):,.0f}",
            f"{median(sample.bare_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.host_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.stub_cpu_us for sample in rounds):,.1f}",
            f"{median(sample.served.foreign_cores for sample in rounds):.1f}",
        ]
        lines.append(" | ".join([f"| {model}", str(rounds[0].served.connections), *figures]) + " |")
    return "\n".join(lines)
