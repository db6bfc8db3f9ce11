"""A captured front end: what it tries beside serving its clients is stopped."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pybackend.frontend.listening import BACKLOG, bind_for
from pybackend.process.start import terms_of
from pybackend.sandbox.front_ends import FrontEndSandbox
from pybackend.sandbox.sandbox import Sandbox
from pybackend.settings import SandboxSettings
from tests.sandbox.captured import ATTACKS
from tests.support.server import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]

_START = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'stub')!r}]\n"
    "from pybackend_stub.host_program import main\n"
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """What the attacks got, and what the process reported of its sandbox."""
    bundle = tmp_path_factory.mktemp("cache") / "stub"
    bundle.mkdir()
    sandbox = Sandbox(SandboxSettings(), [], bundle)
    own = FrontEndSandbox(sandbox, "pybackend front end 1", BACKLOG)
    ours, theirs = socket.socketpair()
    listening, other = bind_for(2, "127.0.0.1", 0, "HTTP")
    listening.setblocking(True)
    listening.listen(BACKLOG)
    reading, writing = os.pipe()
    ours.settimeout(DEADLINE_S)
    with ours, theirs, listening, other, terms_of(own.confinement, 0) as terms, open(reading, "rb") as said:
        kept = (theirs.fileno(), listening.fileno())
        given = (
            "captured",
            os.getpid(),
            0,
            terms.written,
            writing,
            f"{kept[0]},{kept[1]}",
            "tests.sandbox.captured",
            *kept,
        )
        process = subprocess.Popen(
            [sys.executable, "-B", "-c", _START, *map(str, given)],
            pass_fds=(*kept, terms.written, writing),
            env=own.confinement.environment(os.environ),
        )
        os.close(writing)
        with ExitStack() as stack:
            address = listening.getsockname()
            # An attack takes one or none; the next one is served. Its listener must still be one.
            clients = [stack.enter_context(socket.create_connection(address, DEADLINE_S)) for _ in ATTACKS]
            got = json.loads(ours.recv(1 << 16))
            assert any(each.recv(6) == b"served" for each in clients)  # what it is for, it can do
        assert process.wait(DEADLINE_S) == 0
        report = json.loads(said.readline())["report"]
    own.close()
    sandbox.close()
    return got, report


@pytest.mark.parametrize("attack", [attack.__name__ for attack in ATTACKS])
def test_attack_is_stopped(captured, attack):
    assert captured[0][attack].startswith("stopped: ")


def test_every_layer_is_in_force(captured):
    """On a machine with all of them, which tests need anyway; without root there is no other user to be had."""
    missing = {layer for layer, reason in captured[1].items() if reason}
    assert missing <= ({"uid"} if os.geteuid() else set())
