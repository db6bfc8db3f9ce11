"""Models on real GPUs: what their instances see, compute on, and give back; they need the driver alone, no framework."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from pybackend.gpus import find_gpus
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

DRIVER = '''
import ctypes, json, os, uuid

class TritonPythonModel:
    """OUT is IN after a way through the memory of the first GPU that CUDA shows; SIZE bytes of it are taken, and kept."""

    def initialize(self, args):
        self.args, self.gpus, count = args, [], ctypes.c_int()
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:  # out of this process's reach
            return
        failure = self.cuda.cuInit(0) or self.cuda.cuDeviceGetCount(ctypes.byref(count))
        for number in range(0 if failure else count.value):
            name = ctypes.create_string_buffer(16)
            self.must(self.cuda.cuDeviceGetUuid_v2(name, number))
            self.gpus.append(str(uuid.UUID(bytes=name.raw)))
        if self.gpus:
            context = ctypes.c_void_p()
            self.must(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
            self.must(self.cuda.cuCtxSetCurrent(context))

    def must(self, status):
        if status:
            raise pb_utils.TritonModelException(f"CUDA answers {status}")

    def taken(self, size):
        pointer = ctypes.c_uint64()
        self.must(self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
        return pointer

    def execute(self, requests):
        responses = []
        for request in requests:
            given, size = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "SIZE"))
            back = np.zeros_like(given)
            if self.gpus:
                place = self.taken(given.nbytes)
                self.must(self.cuda.cuMemcpyHtoD_v2(place, given.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(given.nbytes)))
                self.must(self.cuda.cuMemcpyDtoH_v2(back.ctypes.data_as(ctypes.c_void_p), place, ctypes.c_size_t(given.nbytes)))
                self.must(self.cuda.cuMemFree_v2(place))
            if size[0]:
                self.taken(int(size[0]))
            told = {"pid": os.getpid(), "device": self.args["model_instance_device_id"], "gpus": self.gpus}
            about = np.array([json.dumps(told).encode()], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", back), pb_utils.Tensor("ABOUT", about)]))
        return responses
'''

CONFIG = f"""
    backend: "python"
    input [ {tensors(IN=("TYPE_FP32", [4]), SIZE=("TYPE_INT64", [1]))} ]
    output [ {tensors(OUT=("TYPE_FP32", [4]), ABOUT=("TYPE_STRING", [1]))} ]
"""
LEVELS = ("off", "standard", "strict")
KINDS = {"gpu": "KIND_GPU count: 2", "cpu": "KIND_CPU", "model": "KIND_MODEL"}

TAKEN_BYTES = 1 << 30


@pytest.fixture(scope="module")
def found():
    gpus = find_gpus()
    assert gpus.found, gpus.reason
    return gpus.found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    for level in LEVELS:
        for kind, group in KINDS.items():
            sandbox = f'parameters {{ key: "SANDBOX" value {{ string_value: "{level}" }} }}'
            write_model(repository, f"{kind}_{level}", DRIVER, f"{CONFIG} instance_group {{ kind: {group} }} {sandbox}")
    with serving(repository, flags=("--metrics-interval-ms=100",)) as server:
        yield server


def answer(server, model, size=0):
    """What an instance says about itself, after a way through its GPU."""
    given = np.arange(4, dtype=np.float32)
    reply = infer(server, model, {"IN": given, "SIZE": np.array([size])})
    about = json.loads(reply["ABOUT"][0])
    np.testing.assert_array_equal(reply["OUT"], given if about["gpus"] else np.zeros(4))
    return about


def bare(uuid):
    """The name of a GPU or MIG device as CUDA has it."""
    return uuid.partition("-")[2]


def test_the_server_and_nvidia_smi_name_the_same_gpus(found):
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    parts, whole = re.findall(r"UUID: (MIG-[^)]+)", listed), re.findall(r"UUID: (GPU-[^)]+)", listed)
    assert {gpu.uuid for gpu in found} == set(parts or whole)


@pytest.mark.parametrize("level", LEVELS)
def test_instances_compute_on_a_gpu_of_their_own_which_is_their_first(server, found, level):
    seen = {}

    def is_complete():
        about = answer(server, f"gpu_{level}")
        seen[about["pid"]] = (about["device"], *about["gpus"])
        return len(seen) == 2 * len(found)

    wait_until(is_complete, "all instances to answer")
    assert sorted(seen.values()) == sorted(2 * [("0", bare(gpu.uuid)) for gpu in found])


@pytest.mark.parametrize("level", LEVELS)
def test_instances_of_the_other_kinds_see_none_or_all(server, found, level):
    assert answer(server, f"cpu_{level}")["gpus"] == []
    assert sorted(answer(server, f"model_{level}")["gpus"]) == sorted(bare(gpu.uuid) for gpu in found)


def test_metrics_show_what_a_model_takes_and_that_it_is_back_when_its_process_is_killed(server, found):
    uuid = found[0].uuid

    def figure(name):
        return server.metrics()[f'{name}{{gpu_uuid="{uuid}"}}']

    assert figure("nv_gpu_memory_total_bytes") == found[0].memory_bytes
    before = figure("nv_gpu_memory_used_bytes")
    about = answer(server, "gpu_standard", TAKEN_BYTES)
    while bare(uuid) not in about["gpus"]:
        about = answer(server, "gpu_standard", TAKEN_BYTES)
    wait_until(lambda: figure("nv_gpu_memory_used_bytes") >= before + TAKEN_BYTES, "the memory to be taken")
    os.kill(about["pid"], signal.SIGKILL)
    wait_until(lambda: figure("nv_gpu_memory_used_bytes") < before + TAKEN_BYTES, "the memory to be back")
    assert 0 <= figure("nv_gpu_utilization") <= 1
    if f'nv_energy_consumption{{gpu_uuid="{uuid}"}}' in server.metrics():
        start = figure("nv_energy_consumption")
        wait_until(lambda: figure("nv_energy_consumption") > start, "some energy to be used")


def test_the_doctor_starts_cuda_where_models_would(found):
    command = [sys.executable, "-m", "pybackend", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    rows = {row["layer"]: row for row in json.loads(done.stdout)}
    assert rows["gpu"]["found"].startswith(f"This machine has GPU 0: {found[0]}")
    assert (rows["gpu in models"]["status"], rows["gpu in models"]["advice"]) == ("ok", "")
