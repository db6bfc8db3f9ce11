"""A pack that is ended in the middle: no half archive, nothing left after the next one, a status that says it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from pybackend.pack.scratch import scratch_directory
from tests.support.conda_channel import write_wheel
from tests.support.gates import wait_until
from tests.support.packed_environments import PACK_DEADLINE_S, run_pack

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture
def requirements(tmp_path):
    write_wheel(tmp_path / "wheels", "leaf", "1.0", {"leaf.py": "X = 1\n"})
    path = tmp_path / "requirements.txt"
    path.write_text("--no-index\n--find-links wheels\nleaf\n")
    return path


def _start(requirements, python):
    command = [sys.executable, "-m", "pybackend", "pack", requirements, "-o", requirements.parent / "env.tar.gz"]
    command += ["--python", python, "--work-directory", requirements.parent / "work"]
    return subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _wait_for_compiled(process, directory):
    """Until modules are being compiled: by then all kinds of things lie around."""
    stop = threading.Event()
    deadline = threading.Timer(PACK_DEADLINE_S, stop.set)
    deadline.start()
    try:
        while process.poll() is None and not stop.is_set():
            if any(directory.glob("work/pack-*/compiled/lib*/python3.*")):
                return
            stop.wait(0.01)
    finally:
        deadline.cancel()
    process.kill()
    raise AssertionError(f"it never compiled: {process.communicate()[0]}")


def removed(work):
    """Whether nothing is left after another one has looked for what is abandoned."""
    with scratch_directory(work):
        pass
    return not list(work.iterdir())


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "sigterm", "kill-9"],
)
def test_ended_in_the_middle(number, status, requirements, python):
    directory = requirements.parent
    (directory / "env.tar.gz").write_bytes(b"the one before")
    process = _start(requirements, python)
    _wait_for_compiled(process, directory)
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=PACK_DEADLINE_S)
    assert process.returncode == status, output
    assert "Traceback" not in output
    assert (directory / "env.tar.gz").read_bytes() == b"the one before"
    left = list((directory / "work").iterdir())
    assert len(left) == (1 if number == signal.SIGKILL else 0)
    if number == signal.SIGKILL:
        done = run_pack(
            requirements, "-o", directory / "env.tar.gz", "--python", python, "--work-directory", directory / "work"
        )
        assert done.returncode == 0, done.stderr
        # What the killed one had started may go on for a moment, and keep what it writes from being removed.
        wait_until(lambda: removed(directory / "work"), "what a killed pack left is not removed by later ones")
    assert not list(directory.glob(".env.tar.gz*"))
