"""What a call costs in all processes together, within a group's process and by the server: ``python -m tests.bench.groups``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from tests.support.inference import infer
from tests.support.repositories import identity_config, write_model
from tests.support.server import ServerProcess, serving

CALLS, LARGE = 5000, 4 * 1024 * 1024
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
GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "bench" } }'


def cpu_s(server: ServerProcess) -> float:
    """The CPU time so far of the server and its children."""
    spent = 0
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if server.process.pid in {int(directory.name), int(fields[1])}:
            spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


def run(server: ServerProcess, count: int, size: int, steps: int) -> tuple[float, float]:
    """The CPU time of one round in microseconds: in the caller's thread, and in all processes."""
    before = cpu_s(server)
    answer = infer(server, "caller", {"IN": np.array([count, size, steps], np.int32)})
    return answer["OUT"][0] / 1000, (cpu_s(server) - before) / count * 1e6


def main() -> None:
    for extra, name in ((GROUP, "in a group"), ("", "by the server")):
        with tempfile.TemporaryDirectory() as directory:
            for model, code in (("caller", CALLER), ("step", STEP)):
                config = identity_config("TYPE_INT32", extra=f"instance_group {{ kind: KIND_CPU }} {extra}")
                write_model(Path(directory), model, code, config)
            with serving(Path(directory)) as server:
                for _ in range(2):  # the second time everything is warm
                    bare, called = (run(server, CALLS, 4, steps) for steps in (0, 1))
                    one, three = (run(server, 20, LARGE, steps) for steps in (1, 3))
        print(
            f"{name}: a call adds {called[0] - bare[0]:.1f} us in its thread, {called[1] - bare[1]:.1f} us in all processes; "
            f"16 MB through one step {one[1] / 1000:.1f} ms, through three {three[1] / 1000:.1f} ms"
        )


if __name__ == "__main__":
    main()
