"""The core on which server and model wait while requests come one at a time, seen from outside and from the model."""

from __future__ import annotations

import os
import threading

import pytest

from tests.support.callers import caller, write_caller
from tests.support.gates import Gate, wait_until
from tests.support.server import serving

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is always shared"),
]

CORES = "return sorted(os.sched_getaffinity(0))"
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


def test_processes_share_a_core_while_they_wait_and_models_see_all_cores(tmp_path):
    directory = write_caller(tmp_path, extra=TWO)
    gate = Gate(directory, "busy")
    own = sorted(os.sched_getaffinity(0))
    with serving(tmp_path) as server:
        run, stubs = caller(server), server.stub_pids()

        def waits_on_one_core():
            assert run(CORES) == own
            return any(len(os.sched_getaffinity(pid)) == 1 for pid in stubs)

        wait_until(waits_on_one_core, "no process waits on one core")
        assert run(OF_A_THREAD) == own
        assert run(OF_A_PROCESS) == own
        wait_until(waits_on_one_core, "no process waits on one core")

        busy = threading.Thread(target=run, args=('pass_gate(state["directory"], "busy")\nreturn 1',))
        busy.start()
        gate.wait_reached()
        for _ in stubs:
            assert run(CORES) == own  # beside the other one: two executions run at the same time
        assert sorted(os.sched_getaffinity(server.process.pid)) == own
        gate.open()
        busy.join()


def test_without(tmp_path):
    write_caller(tmp_path)
    with serving(tmp_path, flags=("--no-shared-core",)) as server:
        run, (stub,) = caller(server), server.stub_pids()
        for _ in range(100):
            run(CORES)
            assert os.sched_getaffinity(stub) == os.sched_getaffinity(0)
