"""A zygote whose host is the test: what it says when it is ready, and when it must not fork."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pybackend.instance.bundle import stage_bundle
from pybackend_wire.zygote import ARGUMENT, Fork, packed

DEADLINE_S = 30


@contextmanager
def zygote(bundle, *preload):
    """A running one: its process, and our end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with ours:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(bundle), ARGUMENT, str(theirs.fileno()), str(os.getpid()), "0", *preload],
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


def test_it_ends_with_its_socket():
    with zygote(stage_bundle()) as (process, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1
        host.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stdout.read() == ""


MODULES = {
    "a_thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()",
        "what is imported has started 1 threads, which no fork would have",
    ),
    "an_error": ("raise ValueError('not today')", "ValueError: not today"),
    "a_gap": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_preloaded_can_be_in_the_way(tmp_path, name):
    code, reason = MODULES[name]
    bundle = tmp_path / "bundle"
    shutil.copytree(stage_bundle(), bundle)
    (bundle / f"{name}.py").write_text(code)
    with zygote(bundle, name) as (process, host):
        assert json.loads(host.recv(1000)) == [0, 0, reason]
        assert process.wait(DEADLINE_S) == 0


def test_a_request_whose_descriptors_are_lost_is_refused():
    """And the next one is heard all the same."""
    with zygote(stage_bundle()) as (_, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        for number in (1, 2):
            host.send(packed(Fork(number, 0, [], "")))
            assert json.loads(host.recv(1000)) == [number, 0, "a descriptor was lost on the way"]


def test_a_fork_that_is_nobodys_child_ends():
    """Where orphans do not become children of the host, a stub could outlive it: it ends at once."""
    with zygote(stage_bundle()) as (_, host):
        assert json.loads(host.recv(1000)) == [0, 0, ""]
        ours, theirs = socket.socketpair()
        nudges = os.eventfd(0, os.EFD_CLOEXEC)
        reading, writing = os.pipe()
        with ours, open(reading, "rb") as output:
            ours.settimeout(DEADLINE_S)
            socket.send_fds(host, [packed(Fork(1, 0, [], ""))], [theirs.fileno(), nudges, writing])
            theirs.close()
            os.close(nudges)
            os.close(writing)
            number, pid, failure = json.loads(host.recv(1000))
            assert (number, failure) == (1, "")
            assert pid > 0
            assert ours.recv(1000) == b""
            assert output.read() == b""
