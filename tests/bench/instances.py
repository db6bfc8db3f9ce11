"""One instance more: how long a model takes to be loaded into a server that runs, by how its process starts.

Each model says in its parameters how it wants to be started and how far it is confined, so that one server starts all
kinds in turn. What confinement costs per request is measured on the same server.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import bodies, progress, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, alternating, take_turns

ZYGOTE, SPAWN = "zygote", "spawn"
PAUSE_S = 0.2
"""Between two loads: what one leaves to be done, as the next fork to be made, is not the other's cost."""

OFF, STANDARD = "off", "standard"
STARTS = (ZYGOTE, SPAWN)
SANDBOXES = (OFF, STANDARD)

_ZYGOTE_PARAMETER = {ZYGOTE: "yes", SPAWN: "no"}


@dataclass(frozen=True)
class InstanceSample:
    """One load.

    Attributes:
        start: whether its process is forked from one that has numpy already, or is a new interpreter.
        sandbox: its level.
        seconds: from the request to the answer.
    """

    start: str
    sandbox: str
    round: int
    seconds: float


def measure(plan: Plan, scratch: Path) -> list[InstanceSample]:
    """Load models of all kinds, in turn; the first of each kind is not counted: it may have to prepare what others use."""
    kinds = [(start, sandbox) for start in STARTS for sandbox in SANDBOXES]
    repository = scratch / "models"
    for start, sandbox in kinds:
        parameters = {"ZYGOTE": _ZYGOTE_PARAMETER[start], "SANDBOX": sandbox}
        names = [_name(start, sandbox, round_) for round_ in range(-1, plan.load_rounds)]
        repositories.write_add_sub(repository, names, parameters)
    samples: list[InstanceSample] = []
    with loading_launcher().start(repository) as server:
        for round_ in range(-1, plan.load_rounds):
            for start, sandbox in alternating(kinds, round_):
                time.sleep(PAUSE_S)
                seconds = load(server.port, _name(start, sandbox, round_))
                progress.show(f"one instance more by {start}, sandbox {sandbox}: ready after {seconds * 1e3:.1f} ms")
                if round_ >= 0:
                    samples.append(InstanceSample(start, sandbox, round_, seconds))
    return samples


def measure_requests(plan: Plan, scratch: Path) -> list[LoadSample]:
    """Put the same load on a model that is confined and on one that is not."""
    repository = scratch / "models"
    for sandbox in SANDBOXES:
        repositories.write_add_sub(repository, [f"add_sub_{sandbox}"], {"SANDBOX": sandbox})
    workloads = [bodies.add_sub_confined(sandbox, f"add_sub_{sandbox}") for sandbox in SANDBOXES]
    with servers.pybackend_launcher().start(repository) as server:
        for workload in workloads:
            bodies.check(server.port, workload)
        steps = [
            Step(workload, Load(connections, plan.duration_s, plan.warm_up_s), plan.single_rounds)
            for connections in (min(plan.connections), plan.busy_connections)
            for workload in workloads
        ]
        return take_turns([server], steps, scratch)


def loading_launcher(options: Sequence[str] = ()) -> servers.Launcher:
    """A server that starts without models and loads them when it is asked to."""
    return servers.pybackend_launcher(options=["--model-control-mode=explicit", *options])


def load(port: int, model: str) -> float:
    """Have a server load a model; returns how many seconds that took.

    Raises:
        WrongReplyError: it could not be loaded.
    """
    began = time.perf_counter()
    bodies.fetch(port, bodies.load(model))
    return time.perf_counter() - began


def _name(start: str, sandbox: str, round_: int) -> str:
    return f"{start}_{sandbox}_{round_ + 1}"
