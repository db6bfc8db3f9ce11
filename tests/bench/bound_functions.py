"""Small calls of a bound function, and of the same code in a model file: CPU time of server and of function per call."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pybackend_bind import ModelConfig, Tensor, Triton, TritonConfig
from tests.bench import bodies, procstat, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns

CLIENTS = 16
BOUND = "a bound function"
FILE = "a model file"


@dataclass(frozen=True)
class BoundServer(servers.RunningServer):
    """A server whose model is a function of this process."""

    def tree(self) -> procstat.ProcessTree:
        return procstat.ProcessTree(self.pid, (os.getpid(),))


def _add_sub(requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    return [
        {"OUTPUT0": each["INPUT0"] + each["INPUT1"], "OUTPUT1": each["INPUT0"] - each["INPUT1"]} for each in requests
    ]


@contextmanager
def _bound() -> Iterator[BoundServer]:
    config = TritonConfig(http_address="127.0.0.1", http_port=0, allow_grpc=False, metrics_port=0)
    inputs, outputs = (
        [Tensor((4,), np.float32, f"{kind}{number}") for number in (0, 1)] for kind in ("INPUT", "OUTPUT")
    )
    with Triton(config=config) as triton:
        triton.bind(repositories.ADD_SUB, _add_sub, inputs, outputs, config=ModelConfig(batching=False))
        assert triton.server_pid is not None
        yield BoundServer(BOUND, int(triton.addresses["http"].rpartition(":")[2]), triton.server_pid, 0)


def measure(plan: Plan, scratch: Path) -> list[LoadSample]:
    """16 clients of add_sub in turns: the function in this process, and a model file."""
    repository = scratch / "models"
    repositories.write_add_sub(repository, [repositories.ADD_SUB])
    workload = bodies.add_sub_binary()
    with _bound() as bound, servers.pybackend_launcher(FILE).start(repository) as file:
        for server in (bound, file):
            bodies.check(server.port, workload)
        load = Load(CLIENTS, plan.duration_s, plan.warm_up_s)
        return take_turns([bound, file], [Step(workload, load, plan.rounds)], scratch)
