"""Servers that take turns: who is measured when, and how often."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench import bodies, loadgen, servers
from tests.bench.loadgen import Load, LoadError
from tests.bench.turns import Step, alternating, take_turns

FIRST, SECOND = (servers.RunningServer(name, 1, 1, 0.1) for name in ("first", "second"))


@pytest.fixture(scope="module", autouse=True)
def program() -> Path:
    try:
        return loadgen.build()
    except LoadError as error:
        pytest.skip(str(error))


def test_every_other_round_goes_the_other_way() -> None:
    orders = [[server.name for server in alternating([FIRST, SECOND], round_)] for round_ in range(3)]
    assert orders == [["first", "second"], ["second", "first"], ["first", "second"]]


def test_a_step_gets_its_rounds_and_no_more(tmp_path: Path) -> None:
    workload = bodies.add_sub_binary()
    steps = [Step(workload, Load(connections, 0.05, 0), rounds) for connections, rounds in ((1, 2), (2, 1))]
    with ExitStack() as stack:
        running = [stack.enter_context(servers.echo(size)) for size in (10, 20)]
        samples = take_turns(running, steps, tmp_path)
    assert [(sample.round, sample.connections, sample.result.reply_bytes) for sample in samples] == [
        (0, 1, 10),
        (0, 1, 20),
        (0, 2, 10),
        (0, 2, 20),
        (1, 1, 20),
        (1, 1, 10),
    ]
    assert {sample.workload for sample in samples} == {"add_sub binary"}
    assert all(sample.result.replies > 0 for sample in samples)
