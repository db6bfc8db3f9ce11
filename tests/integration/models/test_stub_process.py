"""A stub as a process of the operating system: its descriptors, and what it says before it is anybody's."""

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from pybackend.environment.environment import Environment
from pybackend.observability.model_output import ModelOutput
from pybackend.process.bundle import stage_bundle
from pybackend.process.launcher import StubLauncher


def descriptors(pid="self"):
    return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]


def started(launcher):
    return asyncio.run(launcher.start())


@pytest.fixture
def script(tmp_path):
    """What is started in place of a Python."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho some library says hello\nprintf 'and fails' >&2\nexit 1\n")
    path.chmod(0o755)
    return Environment(path, "script")


def test_a_stub_inherits_what_it_needs_and_leaves_nothing_behind():
    bundle = stage_bundle()  # whose lock this process holds from now on
    before = len(descriptors())
    launcher = StubLauncher(bundle)
    stubs = [started(launcher), started(launcher)]
    try:
        for stub in stubs:
            assert stub.socket.getblocking() is False
            stub.socket.setblocking(True)
            stub.socket.recv(1)  # it has started
            held = descriptors(stub.pid)
            pipes = [name for name in held if name.startswith("pipe:")]
            # Standard output and error, and the stub's own for records; and that of the nudges.
            assert sorted(pipes.count(name) for name in set(pipes)) == [1, 3]
            assert len([name for name in held if name.startswith("socket:")]) == 1
            # Nothing that the host writes to: it could be filled, or made to wait, behind the host's back.
            assert not any(name.startswith("anon_inode:") for name in held)
    finally:
        for stub in stubs:
            stub.discard()
        launcher.close()
    assert len(descriptors()) == before


def test_a_stub_that_does_not_listen_to_nudges_keeps_nobody_waiting():
    """Whatever it does with its end: the host's end is nobody's but the host's, and never waits."""
    launcher = StubLauncher(stage_bundle())
    stub = started(launcher)
    try:

        def nudge_often():
            for _ in range(1 << 17):  # a pipe holds half as many
                stub.nudge()

        nudging = threading.Thread(target=nudge_often, daemon=True)
        nudging.start()
        nudging.join(60)
        assert not nudging.is_alive()
    finally:
        stub.discard()
        launcher.close()
    stub.nudge()


def test_what_was_said_before_belongs_to_the_instance(script, caplog):
    caplog.set_level(logging.INFO, "pybackend")

    launcher = StubLauncher(stage_bundle(), script)
    process = started(launcher)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    output = ModelOutput("m_0")
    process.send_output_to(output)

    async def scenario():
        ended = asyncio.Event()
        process.on_exit(asyncio.get_running_loop(), ended.set)
        async with asyncio.timeout(60):
            await ended.wait()

    asyncio.run(scenario())
    process.socket.close()
    assert output.tail == ["some library says hello", "and fails"]
    assert [(record.filename, record.lineno) for record in caplog.records] == [("m_0/output", 1), ("m_0/output", 2)]
