"""How a dead process comes back: more and more slowly if it dies again and again, and for as long as it takes."""

from __future__ import annotations

import os
import re
import signal
import time
from itertools import pairwise

import pytest

from tests.faults.victims import VICTIM, Asker, ask, starts, told, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

LINGERING = VICTIM.replace(
    "def initialize(self, args):",
    """def initialize(self, args):
        import threading
        threading.Thread(target=time.sleep, args=(3600,)).start()""",
)
"""A victim whose process does not end by itself, because one of its threads does not."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("restarts")


@pytest.fixture(scope="module")
def server(repository):
    for name in ("weak", "wounded", "stuck", "well"):
        write_victim(repository, name)
    write_victim(repository, "lingering", code=LINGERING)
    with serving(repository) as server:
        yield server


def kill(server, model: str) -> float:
    """Kill the model's process; returns when."""
    os.kill(int(told(server, model, "pid")), signal.SIGKILL)
    return time.monotonic()


def test_the_first_restart_is_at_once_and_the_next_ones_are_later_and_later(server, repository):
    deaths = []
    for _ in range(5):
        deaths.append(kill(server, "weak"))
        server.wait_until("/v2/models/weak/ready", 400)
        server.wait_until("/v2/models/weak/ready", 200)
        assert told(server, "well", "echo unharmed") == "unharmed"
    pauses = [start - death for death, (_, start) in zip(deaths, starts(repository / "weak")[1:], strict=True)]
    assert pauses[0] < 1.0
    for pause, least in zip(pauses[1:], (0.1, 0.2, 0.4, 0.8), strict=True):
        assert least <= pause < least + 1.5
    server.wait_ready()


def test_a_model_that_cannot_be_loaded_any_more(server, repository):
    """Nobody waits for what may never come: requests are refused with the reason until it comes."""
    directory = repository / "wounded"
    (directory / "gated").touch()
    gate = Gate(directory, "initialize")
    kill(server, "wounded")
    gate.wait_reached()
    with Asker(server) as asker:
        waiting = [asker.ask("wounded", f"echo {n}") for n in range(3)]
        metric = 'nv_inference_pending_request_count{model="wounded",version="1"}'
        wait_until(lambda: server.metrics()[metric] == 3, "the requests do not wait")
        (directory / "broken").touch()
        os.kill(starts(directory)[-1][0], signal.SIGKILL)  # it dies in initialize; the next one fails there
        replies = [future.result() for future in waiting]
    text = "model 'wounded' has no instance that can serve: its process could not be restarted. "
    assert {reply.status for reply in replies} == {503}
    assert all(reply.error.startswith(text) for reply in replies)
    server.wait_for("instance 'wounded_0' cannot be restarted: ValueError: the weights are missing")
    reply = ask(server, "wounded", "echo")
    assert reply.status == 503
    assert reply.error.startswith(text + "ValueError: the weights are missing")
    assert server.get("/v2/models/wounded/ready").status == 400
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert told(server, "well", "echo unharmed") == "unharmed"

    attempts = len(starts(directory))
    wait_until(lambda: len(starts(directory)) >= attempts + 2, "nobody tries again")
    times = [when for _, when in starts(directory)[-3:]]
    first, second = (later - earlier for earlier, later in pairwise(times))
    assert second > first * 1.5, "it is not tried less and less often"

    (directory / "broken").unlink()
    gate.open()
    server.wait_until("/v2/models/wounded/ready", 200)
    assert told(server, "wounded", "echo well again") == "well again"
    server.wait_ready()


def test_a_process_that_failed_to_start_does_not_stay(server, repository):
    """Not even if a thread of the model's keeps it alive."""
    directory = repository / "lingering"
    (directory / "broken").touch()
    kill(server, "lingering")
    wait_until(lambda: len(starts(directory)) >= 4, "nobody tries again")
    wait_until(
        lambda: sum(pid in server.stub_pids() for pid, _ in starts(directory)) <= 1,
        f"of the processes {starts(directory)} too many are among {server.stub_pids()}",
    )
    (directory / "broken").unlink()
    server.wait_until("/v2/models/lingering/ready", 200)
    assert told(server, "lingering", "echo well again") == "well again"


def test_a_stop_does_not_wait_for_a_restart(repository, tmp_path):
    directory = write_victim(tmp_path, "slow")
    gate = Gate(directory, "initialize")
    with serving(tmp_path) as server:
        (directory / "gated").touch()
        kill(server, "slow")
        gate.wait_reached()
        with Asker(server) as asker:
            waiting = asker.ask("slow", "echo")
            wait_until(lambda: re.search(r'pending_request_count\{model="slow".*1', str(server.metrics())), "it is lost")
            begin_s = time.monotonic()
            status = server.stop()
            assert (status, time.monotonic() - begin_s < 5) == (0, True)
            assert waiting.result().status == 503
