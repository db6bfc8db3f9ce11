"""A zygote whose host is the test: what it says when it is ready, and when it must not fork."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybackend.process.bundle import stage_bundle
from pybackend_wire.zygote import ARGUMENT, SPARE_NAME, Fork, packed
from tests.support.gates import wait_until
from tests.support.nvidia import StandIn, needs_stand_in
from tests.support.server import name_of

DEADLINE_S = 30

PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def zygote(bundle, *preload, python=(sys.executable,)):
    """A running one: its process, and our end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with ours:
        process = subprocess.Popen(
            [*python, "-I", "-B", str(bundle), ARGUMENT, str(theirs.fileno()), str(os.getpid()), "0", *preload],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()
            process.communicate()


def test_it_ends_with_its_socket(adopting):
    with zygote(stage_bundle()) as (process, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1
        host.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout.read() == ""


MODULES = {
    "a_thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        "its modules have started 1 threads, which forks would lack",
    ),
    "an_error": ("raise ValueError('not today')", "ValueError: not today"),
    "a_gap": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
}


def answer_with(tmp_path, name, code, **more):
    """What a zygote says that is to preload a module with this code."""
    bundle = tmp_path / "bundle"
    shutil.copytree(stage_bundle(), bundle)
    (bundle / f"{name}.py").write_text(code)
    with zygote(bundle, name, **more) as (process, host):
        answer = json.loads(host.recv(1000))
        assert process.wait(DEADLINE_S) == 0
    return answer


@pytest.mark.parametrize("name", MODULES)
def test_what_is_preloaded_can_be_in_the_way(tmp_path, name):
    code, reason = MODULES[name]
    assert answer_with(tmp_path, name, code) == [0, 0, reason]


@needs_stand_in
def test_a_gpu_that_is_open_is_in_the_way(tmp_path):
    python = StandIn(tmp_path / "machine").python()
    answer = answer_with(tmp_path, "opens_gpu", "CONTROL = open('/dev/nvidiactl', 'rb')", python=python)
    assert answer == [0, 0, "its modules have opened a GPU, which forks could not use"]


def test_a_request_whose_descriptors_are_lost_is_refused(adopting):
    """And the next one is heard all the same."""
    with zygote(stage_bundle()) as (_, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        for number in (1, 2):
            host.send(packed(Fork(number, 0, [], "", {})))
            assert json.loads(host.recv(1000)) == [number, 0, "a descriptor was lost on the way"]


def test_a_fork_that_is_nobodys_child_ends():
    """Where orphans do not become children of the host, a stub could outlive it: each ends at once, and so does the
    zygote."""
    with zygote(stage_bundle()) as (process, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        assert host.recv(1000) == b""
        assert process.wait(DEADLINE_S) == 0


def test_a_spare_that_dies_is_replaced(adopting):
    with zygote(stage_bundle()) as (_, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        for _ in range(3):
            os.kill(next_spare(), signal.SIGKILL)
        with asked(host, 1) as (_, sock):
            assert sock.recv(1) != b""


def test_a_spare_ends_with_its_zygote_and_what_it_becomes_does_not(adopting):
    with zygote(stage_bundle()) as (process, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        with asked(host, 1) as (pid, sock):
            assert sock.recv(1) != b""
            spare = next_spare(pid)
            process.kill()
            assert os.waitpid(spare, 0) == (spare, 0)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0)


@pytest.fixture
def adopting():
    """Orphans become children of this process while a test runs; they end with their zygotes and their sockets."""
    prctl, before = ctypes.CDLL(None).prctl, children()
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for pid in children() - before:
        os.waitpid(pid, 0)


def children():
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def next_spare(*others):
    """The process that waits to be asked for: a child of this one since the zygote has seen it come to life."""
    found = []

    def look():
        found[:] = [pid for pid in children() - {*others} if name_of(pid) == SPARE_NAME and state_of(pid) == "S"]
        return found

    wait_until(look, "there is no spare")
    return found[0]


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def asked(host, number):
    """A fork, and our end of its socket."""
    ours, theirs = socket.socketpair()
    nudges = os.open(os.devnull, os.O_RDONLY)
    with ours:
        ours.settimeout(DEADLINE_S)
        output = os.open(os.devnull, os.O_WRONLY)
        socket.send_fds(host, [packed(Fork(number, 0, [], "", {}))], [theirs.fileno(), nudges, output])
        theirs.close()
        os.close(nudges)
        os.close(output)
        said, pid, failure = json.loads(host.recv(1000))
        assert (said, failure) == (number, "")
        yield pid, ours
