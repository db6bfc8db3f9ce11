"""Cores of the processes of instances, chosen by the policy that their group, or their kind, names."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pybackend.cli.command_parser import UsageError
from tests.support.command_line import serve_settings
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

CORES = sorted(os.sched_getaffinity(0))

WHERE = """
import os
import threading


class TritonPythonModel:
    def execute(self, requests):
        cores = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
        thread = threading.Thread(target=lambda: cores.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        (same,) = set(map(frozenset, cores))
        out = pb_utils.Tensor("CORES", np.array(sorted(same), np.int64))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT64", [1]))} ] output [ {tensors(CORES=("TYPE_INT64", [-1]))} ]
"""


@pytest.mark.spec("srv-S24")
@pytest.mark.skipif(len(CORES) < 2, reason="one core is all there is")
def test_processes_stay_on_their_cores(tmp_path):
    for name, group in {
        "kind": "kind: KIND_CPU",
        "named": 'kind: KIND_CPU host_policy: "mine"',
        "model": "kind: KIND_MODEL",
        "undefined": 'kind: KIND_CPU host_policy: "nobody"',
    }.items():
        write_model(tmp_path, name, WHERE, f"{CONFIG} instance_group {{ {group} }}")
    first, second = CORES[:2]
    flags = (f"--host-policy=cpu,cpu-cores={first}", f"--host-policy=mine,cpu-cores={second}-{second}")
    with serving(tmp_path, flags=flags) as server:

        def cores_of(model):
            return infer(server, model, {"IN": np.int64([1])})["CORES"].tolist()

        assert cores_of("kind") == [first]
        assert cores_of("named") == [second]
        assert cores_of("model") == cores_of("undefined") == CORES
        for pid in server.stub_pids():
            os.kill(pid, signal.SIGKILL)
        server.wait_for("instance 'named_0_0' is restarted")
        assert cores_of("named") == [second]


NODE = Path("/sys/devices/system/node/node0/cpulist")

with_nodes = pytest.mark.skipif(not NODE.exists(), reason=f"the kernel tells of no NUMA nodes: there is no {NODE}")


def cores_of_node():
    pieces = [piece.partition("-") for piece in NODE.read_text().strip().split(",")]
    return {core for first, _, last in pieces for core in range(int(first), int(last or first) + 1)}


@with_nodes
@pytest.mark.spec("srv-S24")
def test_processes_stay_on_their_node(tmp_path):
    expected = sorted(cores_of_node() & set(CORES))
    if not expected:
        pytest.skip("these tests may use no core of node 0")
    write_model(tmp_path, "m", WHERE, f"{CONFIG} instance_group {{ kind: KIND_CPU }}")
    with serving(tmp_path, flags=("--host-policy=cpu,numa-node=0",)) as server:
        assert infer(server, "m", {"IN": np.int64([1])})["CORES"].tolist() == expected


@with_nodes
@pytest.mark.spec("srv-S24")
def test_a_node_means_those_of_its_cores_that_the_server_may_use():
    core = min(cores_of_node() & set(CORES), default=None)
    if core is None:
        pytest.skip("these tests may use no core of node 0")
    code = f"""
import os
os.sched_setaffinity(0, [{core}])
from pybackend.cli.command_line import parse_serve_flags
print(sorted(parse_serve_flags(["models", "--host-policy=cpu,numa-node=0"]).models.host_policies["cpu"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"[{core}]\n"


def test_ranges_add_up():
    first, last = CORES[0], CORES[-1]
    settings = serve_settings(
        ["serve", "models", f"--host-policy=a,cpu-cores={first},{last}", "--host-policy=b,cpu-cores=0"]
    )
    assert settings.models.host_policies == {"a": {first, last}, "b": {0}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("cpu", "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu"),
        ("cpu,cpu-cores", "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu,cpu-cores"),
        (",cpu-cores=0", "--host-policy option format is '<policy name>,<setting>=<value>'. Got ,cpu-cores=0"),
        ("cpu,cores=0", "Unsupported host policy setting 'cores'. Write cpu-cores or numa-node"),
        ("cpu,cpu-cores=3-1", "'3-1' is not a range of cores such as 0-3"),
        ("cpu,cpu-cores=a-b", "'a-b' is not a range of cores such as 0-3"),
        ("cpu,cpu-cores=0-99999", f"this server may use {len(CORES)} cores, "),
        ("cpu,numa-node=4096", "this machine has no NUMA node '4096' with cores"),
    ],
)
def test_mistakes(value, text):
    with pytest.raises(UsageError) as caught:
        serve_settings(["serve", "models", f"--host-policy={value}"])
    assert text in str(caught.value)
