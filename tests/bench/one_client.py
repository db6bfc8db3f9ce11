"""What a single client waits for when a request is more than one execution: calls, ensembles, streams; and strings."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import bodies, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns


def measure_calls(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """add_sub asked directly, and through models that call it: the difference is what the calls cost."""
    workloads = [bodies.add_sub_direct(), bodies.bls_add_sub(), bodies.bls_gather()]
    return _measure(launchers, repositories.write_calls, workloads, plan, scratch)


def measure_ensemble(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """add_sub asked directly, and as the first of two steps: the difference is what the second one costs."""
    return _measure(launchers, repositories.write_ensemble, [bodies.one_step(), bodies.two_steps()], plan, scratch)


def measure_chain(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """A large tensor through identity, and through several such steps of an ensemble."""
    workloads = [bodies.identity_step(plan.chain_bytes), bodies.identity_chain(plan.chain_bytes)]
    return _measure(launchers, repositories.write_chain, workloads, plan, scratch)


def measure_stream(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Many responses to one decoupled request, read by a model that answers the client once it has them all."""
    return _measure(launchers, repositories.write_stream, [bodies.stream()], plan, scratch)


def measure_strings(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Many short strings, there and back."""
    return _measure(launchers, repositories.write_strings, [bodies.strings()], plan, scratch)


def _measure(
    launchers: Sequence[servers.Launcher],
    write: Callable[[Path], None],
    workloads: Sequence[bodies.Workload],
    plan: Plan,
    scratch: Path,
) -> list[LoadSample]:
    repository = scratch / "models"
    write(repository)
    load = Load(1, plan.duration_s, plan.warm_up_s, plan.large_requests)
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for workload in workloads:
            for server in running:
                bodies.check(server.port, workload)
        return take_turns(running, [Step(workload, load, plan.single_rounds) for workload in workloads], scratch)
