"""The process that instances are forked from dies or hangs: those that live do not notice, and others come to life."""

import os
import signal
from itertools import permutations

import pytest

from pybackend_wire.zygote import SPARE_NAME
from tests.faults.victims import starts, told, write_victim
from tests.support.gates import wait_until
from tests.support.server import free_of_processes, name_of, serving
from tests.support.thorough import one_in


def restart(server, directory):
    """Kill a model's only instance, and wait for the next one."""
    lives = starts(directory)
    os.kill(lives[-1][0], signal.SIGKILL)
    wait_until(lambda: len(starts(directory)) > len(lives), "nobody restarts it")
    server.wait_until(f"/v2/models/{directory.name}/ready", 200)
    assert told(server, directory.name, "pid") == str(starts(directory)[-1][0])


@pytest.mark.spec("pb-H02", "pb-H06")
def test_a_zygote_that_dies_is_replaced(tmp_path):
    for name in ("a", "b"):
        write_victim(tmp_path, name)
    with serving(tmp_path) as server:
        (zygote,) = server.zygote_pids()
        pids = server.stub_pids()
        os.kill(zygote, signal.SIGKILL)
        assert free_of_processes([zygote])
        assert [told(server, name, "echo hello") for name in ("a", "b")] == ["hello", "hello"]
        # The successor may have begun; until it has a name, it looks like an instance.
        assert set(server.stub_pids()) >= set(pids), "an instance died with the process that it was forked from"
        restart(server, tmp_path / "a")
        (successor,) = server.zygote_pids()
        assert successor != zygote
        assert "not forked" not in server.output
        assert server.stop() == 0


@pytest.mark.thorough
def test_a_zygote_that_hangs_is_done_without(tmp_path):
    write_victim(tmp_path, "a")
    with serving(tmp_path) as server:
        (zygote,) = server.zygote_pids()
        wait_until(lambda: SPARE_NAME in map(name_of, server.child_pids()), "there is no spare")
        os.kill(zygote, signal.SIGSTOP)
        restart(server, tmp_path / "a")  # there was a spare yet
        assert "not forked" not in server.output
        restart(server, tmp_path / "a")
        server.wait_for(r"are started one by one for a while, not forked: .*\) did not answer within 10 s")
        assert free_of_processes([zygote])
        restart(server, tmp_path / "a")
        assert server.output.count("not forked") == 1


@pytest.mark.spec("srv-P08")
@pytest.mark.parametrize("order", one_in(3, map("-".join, permutations(("host", "zygote", "stub")))))
def test_nothing_is_left_in_whatever_order_they_die(tmp_path, order):
    write_victim(tmp_path, "a")
    write_victim(tmp_path, "b")
    with serving(tmp_path) as server:
        pids = server.child_pids()
        victims = {"host": server.process.pid, "zygote": server.zygote_pids()[0], "stub": int(told(server, "a", "pid"))}
        for name in order.split("-"):
            try:
                os.kill(victims[name], signal.SIGKILL)
            except ProcessLookupError:  # it died with the host
                assert order.index("host") < order.index(name)
            if name == "host":
                server.wait()
        assert free_of_processes(pids), "processes outlived their host"


@pytest.mark.thorough
def test_a_zygote_dies_while_models_load(tmp_path):
    """Whatever it was doing at that time: all models get ready."""
    for number in range(6):
        write_victim(tmp_path, f"m{number}")
    for _ in range(3):
        with serving(tmp_path, ready=False) as server:
            wait_until(server.zygote_pids, "there is none to kill")
            for pid in server.zygote_pids():
                os.kill(pid, signal.SIGKILL)
            server.wait_ready()
            # One may have been born to the zygote when it died, whom nobody knows; it is found within a second.
            wait_until(lambda: len(server.stub_pids()) == 6, "there are not as many processes as models")
            pids = server.child_pids()
            assert server.stop() == 0
        assert free_of_processes(pids)
