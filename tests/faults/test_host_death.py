"""The host is killed -9: its models' processes end at once, whatever they do, and nothing stays behind."""

import http.client
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.faults.victims import VICTIM, Asker, told, write_victim
from tests.support.gates import Gate, wait_until
from tests.support.held_files import open_links, shared_memory
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import free_of_processes, serving
from tests.support.warm_start import starts

BUSY = (
    VICTIM
    + """
    def hold_the_interpreter(self, _):
        mark(self.directory, "held")
        # PyDLL keeps the interpreter's lock: no other thread of this process runs, and no Python code sees a signal.
        ctypes.PyDLL(None).sleep(3600)

    def spawn_thread(self, _):
        import threading
        threading.Thread(target=time.sleep, args=(3600,)).start()
"""
)


def kill_host(server) -> list[int]:
    """Kill -9; returns the processes that it had started, once it is reaped itself."""
    stubs = server.stub_pids()
    server.process.send_signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    return stubs


@pytest.mark.spec("srv-P08", "pb-F04")
def test_nothing_stays(tmp_path):
    """One model is idle, one has large tensors in shared memory, one computes, one holds its interpreter, one has a
    thread."""
    repository, temporary, cache = (tmp_path / name for name in ("models", "temporary", "cache"))
    temporary.mkdir()
    for name in ("idle", "threaded"):
        write_victim(repository, name, code=BUSY)
    for name in ("waiting", "deaf"):
        write_victim(repository, name, code=BUSY)
    write_model(repository, "large", IDENTITY, identity_config())
    environment = {**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    with serving(repository, env=environment, cwd=tmp_path) as server, Asker(server) as asker:
        told(server, "threaded", "spawn_thread")
        data = np.arange(1 << 20, dtype=np.float32).tolist()
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1 << 20], "data": data}]}
        assert server.infer("large", body).status == 200
        asked = [asker.ask("waiting", "gate execute"), asker.ask("deaf", "hold_the_interpreter")]
        Gate(repository / "waiting", "execute").wait_reached()
        wait_until((repository / "deaf" / "held").exists, "nobody holds the interpreter")
        files_before = everything_below(tmp_path)
        held = set().union(*map(names_held, (server.process.pid, *server.child_pids())))
        stubs = kill_host(server)
        assert len(stubs) == 5
        assert free_of_processes(stubs), "processes outlived their host"
        for answer in asked:
            assert isinstance(answer.exception(), (http.client.HTTPException, OSError))
    assert not [name for name in held if os.path.exists(name)], "shared memory or sockets outlived their host"
    assert list(temporary.iterdir()) == []
    assert everything_below(tmp_path) == files_before
    assert not [path for path in everything_below(cache) if ".staging" in path]


@pytest.mark.spec("srv-P08", "pb-F04")
def test_nothing_stays_of_a_host_that_still_loads(tmp_path):
    directory = write_victim(tmp_path, "slow")
    (directory / "gated").touch()
    write_victim(tmp_path, "other")
    with serving(tmp_path, ready=False) as server:
        Gate(directory, "initialize").wait_reached()
        wait_until(lambda: len(server.stub_pids()) == 2, "the other model has no process")
        stubs = kill_host(server)
        assert free_of_processes(stubs), "processes outlived their host"


@pytest.mark.spec("srv-P08", "pb-F04")
def test_nothing_stays_of_a_host_that_has_just_begun(tmp_path):
    """Processes that were started ahead, and have not said a word yet, end too."""
    for name in ("a", "b", "c"):
        write_victim(tmp_path, name)
    for stubs_wanted in (1, 3):
        with starts(warm=False), serving(tmp_path, ready=False) as server:
            wait_until(lambda n=stubs_wanted: len(server.stub_pids()) >= n, "no process is started")
            assert free_of_processes(kill_host(server)), "processes outlived their host"


def everything_below(directory: Path) -> set[str]:
    return {str(path) for path in directory.rglob("*")}


def names_held(pid: int) -> set[str]:
    """Paths of the shared memory and of the Unix sockets that a process has."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    sockets = {f"socket:[{fields[6]}]": fields[7] for fields in map(str.split, lines) if len(fields) > 7}
    return shared_memory(pid) | {path for link in open_links(pid) if (path := sockets.get(link, "")).startswith("/")}
