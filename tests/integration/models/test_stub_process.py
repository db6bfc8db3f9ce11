"""A stub as a process of the operating system: its descriptors, and what it says before it is anybody's."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from pybackend.environment.environment import Environment
from pybackend.instance.bundle import stage_bundle
from pybackend.instance.launcher import StubLauncher
from pybackend.observability.model_output import ModelOutput


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
    before = len(descriptors())
    launcher = StubLauncher(stage_bundle())
    launcher.start_ahead(1, confined=False)
    stubs = [started(launcher), started(launcher)]
    try:
        for stub in stubs:
            assert stub.socket.getblocking() is False
            stub.socket.setblocking(True)
            stub.socket.recv(1)  # it has started
            held = descriptors(stub.pid)
            pipes = [name for name in held if name.startswith("pipe:")]
            assert len(pipes) == 3  # standard output and error, and the stub's own for records
            assert len(set(pipes)) == 1
            assert len([name for name in held if name.startswith("socket:")]) == 1
            assert held.count("anon_inode:[eventfd]") == 1
    finally:
        for stub in stubs:
            stub.discard()
        launcher.close()
    assert len(descriptors()) == before


def test_a_stub_that_does_not_listen_to_nudges_keeps_nobody_waiting():
    """It holds the counter too, and can fill it to the brim."""
    launcher = StubLauncher(stage_bundle())
    stub = started(launcher)
    try:
        stub.nudge()
        assert int.from_bytes(os.read(stub._nudges, 8), "little") == 1
        os.write(stub._nudges, (2**64 - 2).to_bytes(8, "little"))
        nudging = threading.Thread(target=stub.nudge, daemon=True)
        nudging.start()
        nudging.join(5)
        assert not nudging.is_alive()
    finally:
        stub.discard()
        launcher.close()
    stub.nudge()


def test_a_spare_process_that_died_says_why(script, caplog):
    caplog.set_level(logging.INFO, "pybackend")
    launcher = StubLauncher(stage_bundle(), script)
    launcher.start_ahead(1, confined=False)
    os.waitid(os.P_PID, launcher._spare[0].pid, os.WEXITED | os.WNOWAIT)
    started(launcher).discard()
    said = [(record.filename, record.getMessage()) for record in caplog.records]
    assert said[:2] == [("stub/output", "some library says hello"), ("stub/output", "and fails")]


def test_what_was_said_before_belongs_to_the_instance(script, caplog):
    caplog.set_level(logging.INFO, "pybackend")

    launcher = StubLauncher(stage_bundle(), script)
    process = started(launcher)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    output = ModelOutput("m_0")
    process.send_output_to(output)

    async def scenario():
        ended = asyncio.Event()
        process.watch(asyncio.get_running_loop(), ended.set)
        async with asyncio.timeout(30):
            await ended.wait()

    asyncio.run(scenario())
    process.socket.close()
    assert output.tail == ["some library says hello", "and fails"]
    assert [(record.filename, record.lineno) for record in caplog.records] == [("m_0/output", 1), ("m_0/output", 2)]
