"""Processes of models that end on their own: what clients and probes see, and what is left of them."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import identity_config, write_model
from tests.support.server import free_of_processes, serving

GATED = """
import os
import time


class TritonPythonModel:
    def initialize(self, args):
        # The first processes start at once, each later one when the test opens the gate.
        directory = args["model_repository"]
        instance = os.path.join(directory, args["model_instance_name"])
        if os.path.exists(instance):
            while not os.path.exists(os.path.join(directory, "gate")):
                time.sleep(0.005)
        open(instance, "w").close()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([os.getpid()], np.int32))]) for _ in requests]
"""
DEATHS = {
    "os._exit(3)": "exited with status 3",
    "os._exit(0)": "exited with status 0",
    "import ctypes; ctypes.string_at(0)": "was killed by signal 11 (SIGSEGV)",
    "os.abort()": "was killed by signal 6 (SIGABRT)",
    "os.kill(os.getpid(), 9)": "was killed by signal 9 (SIGKILL), which is also how the kernel ends a process when "
    "memory runs out",
}
NUMBER = {"IN": np.zeros(1, np.int32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("crashes")
    for index in range(len(DEATHS)):  # each of its own: who dies again and again is restarted later and later
        write_laboratory(repository, f"crashing_{index}")
    write_laboratory(repository, "parent")
    config = identity_config("TYPE_INT32")
    one = "instance_group { kind: KIND_CPU }"
    write_model(repository, "pair", GATED, config + "instance_group { count: 2 kind: KIND_CPU }")
    for name in ("by_SIGSEGV", "by_SIGKILL"):
        write_model(repository, name, GATED, config + one)
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        yield server


def pid_of(server, model):
    return int(infer(server, model, NUMBER)["OUT"][0])


@pytest.mark.spec("pb-H01", "pb-H03")
@pytest.mark.parametrize("death", DEATHS)
def test_crash_in_execute(server, death):
    model = f"crashing_{list(DEATHS).index(death)}"
    lab = laboratory(server, model)
    before = lab("return out(OUT=text(os.getpid()))")["OUT"][0]
    answer = lab(death)
    assert answer.status == 500
    assert answer.error == f"Stub process '{model}_0_0' is not healthy. The process {DEATHS[death]}."
    assert lab("return out(OUT=text(os.getpid()))")["OUT"][0] != before


@pytest.mark.spec("pb-H02", "pb-H03")
def test_the_other_instance_serves_alone_until_the_restart(server, repository):
    pids = set()
    while len(pids) < 2:
        pids.add(pid_of(server, "pair"))
    dead, alive = sorted(pids)
    os.kill(dead, signal.SIGKILL)
    assert free_of_processes([dead])
    assert {pid_of(server, "pair") for _ in range(50)} == {alive}
    assert server.get("/v2/models/pair/ready").status == 400
    (repository / "pair/gate").touch()
    server.wait_until("/v2/models/pair/ready", 200)
    seen = {pid_of(server, "pair") for _ in range(50)}
    assert len(seen) == 2
    assert alive in seen
    assert dead not in seen


@pytest.mark.spec("pb-H05")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_readiness_follows_and_liveness_stays(server, repository, number):
    model = f"by_{number.name}"
    for path in (
        f"/v2/models/{model}/ready",
        f"/v2/models/{model}/versions/1/ready",
        "/v2/health/ready",
        "/v2/health/live",
    ):
        server.wait_until(path, 200)
    os.kill(pid_of(server, model), number)
    server.wait_until(f"/v2/models/{model}/ready", 400)
    assert server.get(f"/v2/models/{model}/versions/1/ready").status == 400
    assert server.get("/v2/health/ready").status == 400
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/models/pair").status == 200
    (repository / model / "gate").touch()
    for path in (f"/v2/models/{model}/ready", "/v2/health/ready"):
        server.wait_until(path, 200)


@pytest.mark.one_process  # each front end that meets the model keeps warm memory for it
@pytest.mark.spec("pb-H06")
def test_nothing_is_left_of_a_dead_process(server):
    lab = laboratory(server, "parent")
    array = np.ones(1_000_000, np.float32)
    use = "return out(OUT=array('FP32'), OUT0=text(os.getpid()))"
    lab(use, FP32=array)
    # Who looks after orphans is started within a second, and has a pipe.
    wait_until(server.has_warden, "nobody looks after orphans")
    before = traces(server)
    for _ in range(3):
        started = lab(
            """
            import subprocess
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            state["kept"] = array("FP32")
            return out(OUT=array("FP32"), OUT0=text(child.pid, os.getpid()))
            """,
            FP32=array,
        )
        pids = [int(pid) for pid in started["OUT0"]]
        assert lab("os._exit(1)").status == 500
        assert free_of_processes(pids), "a process that the model had started, or its own, is still there"
        assert lab(use, FP32=array).status == 200
    server.wait_until("/v2/models/parent/ready", 200)
    assert traces(server) == before
    assert zombies(server) == []


def traces(server):
    """What a server holds: descriptors by kind, processes, and mapped memory that has, or had, a name."""
    kinds = {}
    directory = Path(f"/proc/{server.process.pid}/fd")
    for descriptor in list(directory.iterdir()):
        try:
            kind = os.readlink(descriptor).partition(":[")[0]
        except FileNotFoundError:
            continue
        if not kind.startswith("socket"):  # connections of this test come and go
            kinds[kind] = kinds.get(kind, 0) + 1
    maps = Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()
    shared = [line.split(maxsplit=5)[5] for line in maps if "memfd:" in line or "/dev/shm" in line]
    return json.dumps([kinds, len(server.stub_pids()), sorted(shared)], indent=1, sort_keys=True)


def zombies(server):
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in server.stub_pids()]
    return [state for state in states if state == "Z"]
