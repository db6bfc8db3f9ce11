"""A pack that is ended in the middle: no half archive, nothing left after the next one, a status that says it."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pybackend_tools.pack.scratch import scratch_directory
from tests.support.conda_channel import write_wheel
from tests.support.gates import wait_until
from tests.support.packed_environments import PACK_DEADLINE_S, run_pack
from tests.support.thorough import thorough

pytestmark = pytest.mark.timeout(300)


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
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  pytest may run in the background
    )


@pytest.fixture
def waiting_python(tmp_path, python):
    """The same CPython; as the one that compiles an environment's modules it waits for the writer of a FIFO to close
    it."""
    tree, fifo = tmp_path / "waiting", tmp_path / "middle"
    shutil.copytree(python, tree, symlinks=True)
    os.mkfifo(fifo)
    (imported,) = tree.glob("lib/python3.*/encodings/utf_8.py")  # not a frozen one; too early for `open`
    wait = (
        f"\nimport posix\nif posix.getcwd().endswith('/compiled'):\n    posix.read(posix.open({str(fifo)!r}, 0), 1)\n"
    )
    with imported.open("a") as source:
        source.write(wait)
    for cached in imported.parent.glob("__pycache__/utf_8.*"):
        cached.unlink()
    return tree, fifo


@contextmanager
def _in_the_middle(process, fifo):
    """While modules are being compiled, when all kinds of things lie around: it stays so until the block ends."""
    opened = []

    def comes():
        assert process.poll() is None, f"it never compiled: {process.communicate()[0]}"
        try:
            opened.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            assert error.errno == errno.ENXIO  # noqa: PT017  nobody reads yet
            return False
        return True

    try:
        wait_until(comes, "no module was compiled", PACK_DEADLINE_S)
        yield
    finally:
        process.kill()
        process.wait()
        opened.append(os.open(fifo, os.O_RDWR))  # what waits for a writer goes on
        fifo.unlink()  # and nothing more begins to wait: what a killed pack has started would do so for ever
        for descriptor in opened:
            os.close(descriptor)


def removed(work):
    """Whether nothing is left after another one has looked for what is abandoned."""
    with scratch_directory(work):
        pass
    return not list(work.iterdir())


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), *thorough((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL))],
    ids=["ctrl-c", "sigterm", "kill-9"],
)
@pytest.mark.thorough
def test_ended_in_the_middle(number, status, requirements, python, waiting_python):
    directory = requirements.parent
    (directory / "env.tar.gz").write_bytes(b"the one before")
    tree, fifo = waiting_python
    process = _start(requirements, tree)
    with _in_the_middle(process, fifo):
        assert list(directory.glob("work/pack-*/compiled/lib*/python3.*"))
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
