"""A thousand clients at once: all are served, and nobody's thread count or descriptor limit stands in the way."""

import json
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.connection import connected, post

COUNT = 1000


@pytest.fixture
def descriptors():
    """This process needs a thousand sockets too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * COUNT)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def threads(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.spec("srv-H42")
def test_thousand_connections(server, descriptors):
    before = threads(server.process.pid)
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(COUNT)]
        for round_number in range(3):
            for number, connection in enumerate(connections):
                value = number + round_number
                tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [value]}
                connection.send(post("/v2/models/identity/infer", json.dumps({"inputs": [tensor]}).encode()))
            for number, connection in enumerate(connections):
                reply = connection.reply()
                assert reply.status == 200
                assert reply.json["outputs"][0]["data"] == [number + round_number]
        assert threads(server.process.pid) == before
        # One more, a newcomer, is served at once too.
        assert server.get("/v2/health/ready").status == 200


@pytest.mark.spec("srv-H42")
def test_descriptor_limit_is_raised(server):
    """As far as this user may: a soft limit of 1024, as most shells have it, is not enough."""
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
