"""What a call, and a step of an ensemble, cost within a group's process and by the server:
``python -m tests.bench.groups``."""

import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.bench.procstat import cpu_times, process_tree
from tests.support.ensembles import step, write_ensemble
from tests.support.inference import infer
from tests.support.repositories import identity_config, tensors, write_model
from tests.support.server import ServerProcess, serving

CALLS, REQUESTS, MANY, LARGE = 5000, 500, 11, 4 * 1024 * 1024
CALLER = """
import time


class TritonPythonModel:
    # IN: how often, how many numbers, how many steps. OUT: the thread's own CPU time of one round, in ns.
    def execute(self, requests):
        count, size, steps = (int(each) for each in requests[0].inputs()[0].as_numpy())
        data = np.zeros(size, np.int32)
        began_ns = time.thread_time_ns()
        for _ in range(count):
            tensor = pb_utils.Tensor("IN", data)
            for _ in range(steps):
                request = pb_utils.InferenceRequest(model_name="step", inputs=[tensor], requested_output_names=["OUT"])
                tensor = pb_utils.Tensor("IN", request.exec().output_tensors()[0].as_numpy())
            if not steps:  # what the calls below cost without being calls
                request = pb_utils.InferenceRequest(model_name="step", inputs=[tensor], requested_output_names=["OUT"])
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)])
        spent = (time.thread_time_ns() - began_ns) // count
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([spent], np.int32))])]
"""
STEP = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)]) for request in requests
        ]
"""
SAME = STEP.replace(" + 1", "")
GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "bench" } }'


def cpu_s(server: ServerProcess) -> float:
    """The CPU time so far of the server and its children."""
    times = cpu_times(process_tree(server.process.pid))
    return (times.host_ns + times.stub_ns) / 1e9


def run(server: ServerProcess, count: int, size: int, steps: int) -> tuple[float, float]:
    """The CPU time of one round in microseconds: in the caller's thread, and in all processes."""
    before = cpu_s(server)
    answer = infer(server, "caller", {"IN": np.array([count, size, steps], np.int32)})
    return answer["OUT"][0] / 1000, (cpu_s(server) - before) / count * 1e6


def ensemble(server: ServerProcess, name: str, count: int, size: int) -> tuple[float, float]:
    """The time, and the CPU time of all processes, of one request to an ensemble in microseconds."""
    data = {"IN": np.zeros(size, np.int32)}
    for _ in range(3):  # a model that has not run yet follows no step
        infer(server, name, data)
    before, began_ns = cpu_s(server), time.monotonic_ns()
    for _ in range(count):
        infer(server, name, data)
    return (time.monotonic_ns() - began_ns) / count / 1000, (cpu_s(server) - before) / count * 1e6


def write_ensembles(directory: Path) -> None:
    both = tensors(IN=("TYPE_INT32", [-1])), tensors(OUT=("TYPE_INT32", [-1]))
    for model, count in (("step", 1), ("step", MANY), ("same", 1), ("same", 3)):
        names = ["IN", *(f"x{place}" for place in range(1, count)), "OUT"]
        steps = [step(f"{model}_{n}", {"IN": a}, {"OUT": b}) for n, (a, b) in enumerate(pairwise(names))]
        write_ensemble(directory, f"{model}{count}", steps, *both)


def main() -> None:
    for extra, name in ((GROUP, "in a group"), ("", "by the server")):
        with tempfile.TemporaryDirectory() as directory:
            models = {"caller": CALLER, "step": STEP, **{f"step_{n}": STEP for n in range(MANY)}}
            for model, code in {**models, **{f"same_{n}": SAME for n in range(3)}}.items():
                config = identity_config("TYPE_INT32", extra=f"instance_group {{ count: 1 kind: KIND_CPU }} {extra}")
                write_model(Path(directory), model, code, config)
            write_ensembles(Path(directory))
            with serving(Path(directory)) as server:
                for _ in range(2):  # the second time everything is warm
                    bare, called = (run(server, CALLS, 4, steps) for steps in (0, 1))
                    one, three = (run(server, 20, LARGE, steps) for steps in (1, 3))
                    small = [ensemble(server, f"step{steps}", REQUESTS, 4) for steps in (1, MANY)]
                    large = [ensemble(server, f"same{steps}", 20, LARGE) for steps in (1, 3)]
        added = [(many - one) / (MANY - 1) for one, many in zip(*small, strict=True)]
        print(
            f"{name}: a call adds {called[0] - bare[0]:.1f} us in its thread, {called[1] - bare[1]:.1f} us in all processes; "
            f"16 MB through one {one[1] / 1000:.1f} ms, through three {three[1] / 1000:.1f} ms of CPU time; "
            f"a step of an ensemble adds {added[0]:.1f} us of latency, {added[1]:.1f} us of CPU time; "
            f"16 MB through one step that passes them on {large[0][0] / 1000:.1f} ms, {large[0][1] / 1000:.1f} ms of CPU time, "
            f"through three {large[1][0] / 1000:.1f} ms, {large[1][1] / 1000:.1f} ms"
        )


if __name__ == "__main__":
    main()
