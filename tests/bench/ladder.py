"""Small tensors under load: add_sub as JSON and as binary, from one connection to many, and in batches."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench import bodies, repositories, servers
from tests.bench.loadgen import Load
from tests.bench.plan import Plan
from tests.bench.turns import LoadSample, Step, take_turns


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Climb the ladder on every server and on the yardstick.

    Args:
        launchers: the servers; the yardstick answers as many bytes as the first of them.
        plan: rounds, connections and times.
        scratch: an empty directory to write in.
    """
    repository = scratch / "models"
    repositories.write_pair(repository)
    samples: list[LoadSample] = []
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for workload in (bodies.add_sub_json(), bodies.add_sub_binary()):
            reply_bytes = [bodies.check(server.port, workload) for server in running]
            steps = [
                Step(
                    workload,
                    Load(connections, plan.duration_s, plan.warm_up_s),
                    plan.single_rounds if connections == 1 else plan.rounds,
                )
                for connections in plan.connections
            ]
            with servers.echo(reply_bytes[0] if reply_bytes else len(workload.body)) as echo:
                samples += take_turns([*running, echo], steps, scratch)
    return samples


def measure_batched(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Put the load of many connections on a model behind a dynamic batcher that may wait for company."""
    repository = scratch / "models"
    repositories.write_batched(repository)
    workload = bodies.add_sub_batched()
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start(repository)) for launcher in launchers]
        for server in running:
            bodies.check(server.port, workload)
        step = Step(workload, Load(plan.batched_connections, plan.duration_s, plan.warm_up_s), plan.single_rounds)
        return take_turns(running, [step], scratch)
