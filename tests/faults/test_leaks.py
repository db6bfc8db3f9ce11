"""Fifty deaths leave nothing behind in the host: no descriptor, no mapping, no process, no thread, and hardly any
memory."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.faults.leaks import descriptors, figure, mappings
from tests.faults.victims import VICTIM, Asker, starts, told, write_victim
from tests.support.connection import Connection, binary_body, head
from tests.support.gates import Gate, wait_until
from tests.support.log_lines import server_tracebacks
from tests.support.server import ServerProcess, serving

INSTANCES, ROUNDS = 10, 5

# Large enough to lie in shared memory, both ways.
LARGE = "x" * 200_000


def kill_all(server: ServerProcess, directory: Path) -> None:
    """Kill every process of the model, half of them in the middle of a request, and wait until all are back."""
    before = len(starts(directory))
    alive = [pid for pid, _ in starts(directory)[-INSTANCES:]]
    gate = Gate(directory, f"round-{before}")
    with Asker(server, INSTANCES) as asker:
        asked = [asker.ask("mortal", f"gate round-{before}") for _ in range(INSTANCES // 2)]
        gate.wait_reached(INSTANCES // 2)
        asked.extend(asker.ask("mortal", f"echo {LARGE}") for _ in range(INSTANCES))
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        assert {future.result().status for future in asked} <= {200, 500}
    wait_until(lambda: len(starts(directory)) == before + INSTANCES, "not all came back")
    server.wait_until("/v2/models/mortal/ready", 200)


def warm_up(server: ServerProcess) -> None:
    """Let every instance do what makes it get memory."""
    with Asker(server, INSTANCES) as asker:
        for answer in [asker.ask("mortal", f"echo {LARGE}") for _ in range(4 * INSTANCES)]:
            assert answer.result().status == 200


@pytest.mark.thorough
def test_fifty_deaths(tmp_path):
    directory = write_victim(tmp_path, "mortal", f"instance_group [ {{ count: {INSTANCES} kind: KIND_CPU }} ]")
    with serving(tmp_path) as server:
        kill_all(server, directory)  # a first round, after which everything that grows once has grown
        warm_up(server)
        before = descriptors(server), mappings(server), figure(server, "Threads"), figure(server, "VmRSS")
        for _ in range(ROUNDS - 1):
            kill_all(server, directory)
        assert len(starts(directory)) == INSTANCES * (ROUNDS + 1)
        warm_up(server)
        wait_until(lambda: len(server.stub_pids()) == INSTANCES, f"processes: {server.stub_pids()}")
        after = descriptors(server), mappings(server), figure(server, "Threads"), figure(server, "VmRSS")
        growth = after[0] - before[0]
        growth.pop("socket", None)  # connections of the last requests may not be closed yet
        assert growth.total() <= 2, f"descriptors grew from {before[0]} to {after[0]}"
        wait_until(
            lambda: descriptors(server)["socket"] <= before[0]["socket"],
            f"sockets grew from {before[0]} to {descriptors(server)}",
        )
        assert after[1] <= before[1] + 2, f"mappings grew from {before[1]} to {after[1]}"
        assert after[2] == before[2], f"threads grew from {before[2]} to {after[2]}"
        assert after[3] <= before[3] + 20_000, f"memory grew from {before[3]} to {after[3]} KiB"
        assert server.stop() == 0
        assert not server_tracebacks(server.output)


def test_requests_that_fail_or_are_abandoned_leave_nothing_either(tmp_path):
    """Errors, refused bodies and clients that go away, a few hundred of each."""
    code = VICTIM + "\n    def fail(self, text):\n        raise ValueError(text[:10])\n"
    write_victim(tmp_path, "mortal", code=code)
    with serving(tmp_path) as server, Asker(server, 8) as asker:

        def round_of_trouble() -> None:
            failing = [asker.ask("mortal", f"fail {LARGE}") for _ in range(100)]
            refused = [asker.ask("nobody", LARGE) for _ in range(100)]
            assert {future.result().status for future in failing} == {500}
            assert {future.result().status for future in refused} == {404}
            for _ in range(50):
                connection = server_connection(server)
                connection.reset()

        round_of_trouble()
        told(server, "mortal", f"echo {LARGE}")
        before = descriptors(server), mappings(server)
        round_of_trouble()
        told(server, "mortal", f"echo {LARGE}")
        wait_until(
            lambda: descriptors(server).total() <= before[0].total(),
            f"descriptors grew from {before[0]} to {descriptors(server)}",
        )
        assert mappings(server) <= before[1]


def server_connection(server: ServerProcess) -> Connection:
    """A connection that has sent the first half of a large binary request."""
    tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 1 << 20}}
    body, headers = binary_body({"inputs": [tensor]}, np.zeros(1 << 20, np.uint8).tobytes())
    connection = Connection(server.port)
    connection.send(head("POST", "/v2/models/mortal/infer", {**headers, "Content-Length": len(body)}))
    connection.send(body[: len(body) // 2])
    return connection
