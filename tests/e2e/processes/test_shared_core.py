"""The core on which server and model wait while requests come one at a time, seen from outside and from the model."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import pytest

from tests.support.callers import caller, sender, write_caller, write_targets
from tests.support.gates import Gate, wait_until
from tests.support.server import serving

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is always shared"),
]

CORES = "return sorted(os.sched_getaffinity(0))"
IS_READY = """
def is_ready(model):
    state["cores"] = sorted(os.sched_getaffinity(0))
    return True

TritonPythonModel.is_ready = is_ready
"""
CALL = 'assert value(call("double", IN=[1.0]).exec()) == [2.0]\n'
OF_A_THREAD = """
seen = []
thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
return seen[0]
"""
OF_A_PROCESS = """
import subprocess, sys
program = "import os; print(sorted(os.sched_getaffinity(0)))"
return json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
"""
TWO = "instance_group { kind: KIND_CPU count: 2 }"


def core_counts(server):
    """The number of cores on which each model's process may wait now."""
    counts = []
    for pid in server.stub_pids():
        with suppress(ProcessLookupError):  # it was killed
            counts.append(len(os.sched_getaffinity(pid)))
    return counts


def waits_on_one_core(server, run, own):
    """Whether a process waits on one core. Its model sees all of them."""
    assert run(CORES) == own
    return 1 in core_counts(server)


def test_processes_share_a_core_while_they_wait_and_models_see_all_cores(tmp_path, whole_starts):
    directory = write_caller(tmp_path, extra=TWO)
    gate = Gate(directory, "busy")
    own = sorted(os.sched_getaffinity(0))
    with serving(tmp_path) as server:
        run, send = caller(server), sender(server)

        def shares():
            return waits_on_one_core(server, run, own)

        wait_until(shares, "no process waits on one core")
        assert run(OF_A_THREAD) == own
        assert run(OF_A_PROCESS) == own
        wait_until(shares, "no process waits on one core after a model has started others")

        busy = threading.Thread(target=send, args=('pass_gate(state["directory"], "busy")\nreturn 1',))
        busy.start()
        gate.wait_reached()
        other = run("return os.getpid()")  # beside the other one: two executions run at the same time
        assert sorted(os.sched_getaffinity(server.process.pid)) == own
        (killed,) = (pid for pid in server.stub_pids() if pid != other)
        os.kill(killed, signal.SIGKILL)
        busy.join()
        wait_until(shares, "no process waits on one core after another one was killed")


def test_a_call_and_its_model_share_a_core(tmp_path):
    model = write_caller(tmp_path) / "1" / "model.py"
    model.write_text(model.read_text() + IS_READY)
    write_targets(tmp_path, "double")
    own = sorted(os.sched_getaffinity(0))
    with serving(tmp_path) as server:
        run = caller(server)

        def all_share():
            assert run(CALL + CORES) == own
            return set(core_counts(server)) == {1}

        for _ in range(3):
            wait_until(all_share, "not all processes wait on one core")
            assert server.get("/v2/models/caller/ready").status == 200
            assert run("return state['cores']") == own  # a thread that runs the model's code


def test_without(tmp_path):
    write_caller(tmp_path)
    with serving(tmp_path, flags=("--no-shared-core",)) as server:
        run, (stub,) = caller(server), server.stub_pids()
        for _ in range(100):
            run(CORES)
            assert os.sched_getaffinity(stub) == os.sched_getaffinity(0)
