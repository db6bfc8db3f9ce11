"""Clients that go away and processes that stand still: who waits behind them is served, and what nobody wants is not
done."""

import json
import os
import signal
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.faults.victims import Asker, command, starts, told, write_victim
from tests.support.connection import connected, post
from tests.support.gates import Gate, wait_until
from tests.support.server import serving


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("bystanders")


@pytest.fixture(scope="module")
def server(repository):
    for name in ("queue", "running", "stopped", "flooded", "well"):
        write_victim(repository, name)
    write_victim(repository, "two", "instance_group [ { count: 2 kind: KIND_CPU } ]")
    with serving(repository) as server:
        yield server


def pending(server, model: str) -> float:
    return server.metrics()[f'nv_inference_pending_request_count{{model="{model}",version="1"}}']


def failures(server, model: str, reason: str) -> float:
    return server.metrics()[f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}']


def infer_bytes(model: str, text: str) -> bytes:
    return post(f"/v2/models/{model}/infer", json.dumps(command(text)).encode())


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_queued_request_of_a_client_that_left_is_not_executed(server, repository, leave):
    directory = repository / "queue"
    gate = Gate(directory, leave)
    executed_before = len((directory / "echoes").read_text()) if (directory / "echoes").exists() else 0
    canceled_before = failures(server, "queue", "CANCELED")
    with Asker(server) as asker:
        begun = asker.ask("queue", f"gate {leave}")
        gate.wait_reached()
        # What comes within the first milliseconds may still be sent ahead, to a process that has always been quick.
        wait_until(lambda: time.time_ns() - gate.reached_ns > 50_000_000, "time stands still")
        with connected(server.port) as first, connected(server.port) as second:
            first.send(infer_bytes("queue", "echo first"))
            second.send(infer_bytes("queue", "echo second"))
            staying = asker.ask("queue", "echo staying")
            wait_until(lambda: pending(server, "queue") == 3, "the requests do not wait")
            getattr(first, leave)()
            getattr(second, leave)()
            wait_until(lambda: pending(server, "queue") == 1, "requests without a client still wait")
        assert failures(server, "queue", "CANCELED") == canceled_before + 2
        gate.open()
        assert begun.result().status == 200
        assert staying.result().status == 200
    assert len((directory / "echoes").read_text()) == executed_before + 1


def test_a_running_request_of_a_client_that_left_ends_and_harms_nobody(server, repository):
    gate = Gate(repository / "running", "execute")
    with connected(server.port) as client:
        client.send(infer_bytes("running", "gate execute"))
        gate.wait_reached()
        client.reset()
    gate.open()
    assert told(server, "running", "echo next") == "next"
    assert failures(server, "running", "BACKEND") == 0
    assert len(starts(repository / "running")) == 1


@contextmanager
def standing_still(pid: int):
    """A process that does not run for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_process_that_stands_still_holds_up_nobody_else(server):
    """Not the host, not other models, not those who ask how things are; its own requests wait for it."""
    pid = int(told(server, "stopped", "pid"))
    with Asker(server) as asker:
        with standing_still(pid):
            waiting = [asker.ask("stopped", f"echo {n}") for n in range(8)]
            for n in range(20):
                assert told(server, "well", f"echo {n}") == str(n)
            assert server.get("/v2/health/live").status == 200
            assert server.get("/v2/models/stopped").status == 200
            assert not any(request.done() for request in waiting)
        assert [request.result().status for request in waiting] == [200] * 8


def test_a_process_that_reads_nothing_does_not_fill_the_host(server):
    """What is queued for it stays in the queue, where it can be cancelled; its socket gets a millisecond's worth."""
    pid = int(told(server, "flooded", "pid"))
    with Asker(server, 64) as asker:
        with standing_still(pid):
            waiting = [asker.ask("flooded", "echo " + "x" * 500_000) for _ in range(64)]
            wait_until(lambda: pending(server, "flooded") > 0, "nothing waits")
            assert told(server, "well", "echo unharmed") == "unharmed"
        assert {request.result().status for request in waiting} == {200}


def test_a_slow_request_holds_up_nobody_whom_another_instance_can_serve(server, repository):
    """However quick the instance was until then: nothing is sent to wait behind a request that lasts."""
    gate = Gate(repository / "two", "slow")
    for n in range(30):
        told(server, "two", f"echo {n}")
    with Asker(server) as asker:
        slow = asker.ask("two", "gate slow")
        gate.wait_reached()
        wait_until(lambda: time.time_ns() - gate.reached_ns > 50_000_000, "time stands still")
        for _ in range(5):
            others = [asker.ask("two", f"echo {n}") for n in range(8)]
            assert [other.result().status for other in others] == [200] * 8
        assert not slow.done()
        gate.open()
        assert slow.result().status == 200


def test_the_server_stops_although_a_process_stands_still(tmp_path):
    write_victim(tmp_path, "stopped")
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, flags=("--exit-timeout-secs=1",)))
        asker = stack.enter_context(Asker(server))
        connection = stack.enter_context(connected(server.port))
        stack.enter_context(standing_still(int(told(server, "stopped", "pid"))))
        connection.send(infer_bytes("stopped", "echo"))
        for _ in range(2):  # who is answered after that has been read after it, too
            assert server.get("/v2/health/live").status == 200
        asked = asker.call(connection.reply, to="POST")
        assert server.stop() == 1
        assert asked.exception() or asked.result().status >= 500
