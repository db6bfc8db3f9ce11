"""Models on GPUs: where instances run and what they see there. The driver's libraries and device files are stand-ins."""

import json
import os
import shutil
import subprocess

import pytest

from tests.sandbox.hosts import public_directory, public_python
from tests.support.connection import connected, post
from tests.support.environments import copy_of
from tests.support.gates import wait_until
from tests.support.nvidia import StandIn, needs_stand_in
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

pytestmark = needs_stand_in

TELL = """
import ctypes, json, os

def opens(path, flags=os.O_RDWR):
    try:
        os.close(os.open(path, flags))
        return True
    except OSError:
        return False

def cuda():
    library, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    return [library.cuInit(0), library.cuDeviceGetCount(ctypes.byref(count)), count.value]

class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        try:
            found = cuda()
        except OSError as error:
            found = str(error)
        files = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia")) if opens("/dev", os.O_RDONLY) else [
            "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
        about = {"kind": self.args["model_instance_kind"], "device_id": self.args["model_instance_device_id"],
                 "visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "pid": os.getpid(), "cuda": found,
                 "files": [name for name in [*files, "dri/renderD128"] if opens("/dev/" + name)], "bus": opens("/sys/bus/pci", os.O_RDONLY)}
        out = pb_utils.Tensor("OUT", np.array([json.dumps(about).encode()], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""

CONFIG = f"""
    backend: "python"
    input [ {tensors(IN=("TYPE_FP32", [1]))} ] output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
"""

OF_DRIVER = ["nvidia-uvm", "nvidia-uvm-tools"]


def sandbox(level):
    return f' parameters {{ key: "SANDBOX" value {{ string_value: "{level}" }} }}'


def group(name):
    return f' parameters {{ key: "PROCESS_GROUP" value {{ string_value: "{name}" }} }}'


MODELS = {
    "every": "",
    "second": "instance_group { kind: KIND_GPU gpus: [ 1 ] count: 2 }" + sandbox("strict"),
    "free": "instance_group { kind: KIND_GPU gpus: [ 1 ] }" + sandbox("off"),
    "auto": "instance_group { kind: KIND_AUTO gpus: [ 1 ] }",
    "cpu": "instance_group { kind: KIND_CPU }",
    "cpu_free": "instance_group { kind: KIND_CPU }" + sandbox("off"),
    "cpu_strict": "instance_group { kind: KIND_CPU }" + sandbox("strict"),
    "model": "instance_group { kind: KIND_MODEL }" + sandbox("strict"),
    "wrong": "instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }",
    "together": "instance_group { kind: KIND_GPU gpus: [ 1 ] }" + group("g"),
    "beside": "instance_group { kind: KIND_GPU gpus: [ 1, 0 ] }" + group("g"),
    "elsewhere": "instance_group { kind: KIND_GPU gpus: [ 0 ] }" + group("g"),
}


@pytest.fixture(scope="module")
def machine():
    """Where models can read the driver's libraries that have users of their own."""
    public = public_directory()
    yield StandIn(public / "machine")
    shutil.rmtree(public)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    for name, text in MODELS.items():
        write_model(repository, name, TELL, CONFIG + text)
    return repository


@pytest.fixture(scope="module")
def server(machine, repository):
    flags = ["--model-control-mode=explicit", "--metrics-interval-ms=50"]
    flags += [f"--load-model={name}" for name in MODELS if name not in {"wrong", "elsewhere"}]
    with serving(
        repository, flags=tuple(flags), python=machine.python("dri/renderD128"), env=machine.environment()
    ) as server:
        yield server


def told(server, model, count=1):
    """What as many instances of a model say about themselves, by their processes' numbers."""
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}]}
    answers = {}

    def is_complete():
        with connected(server.port) as connection:
            connection.send(post(f"/v2/models/{model}/infer", json.dumps(body).encode()))
            about = json.loads(connection.reply().json["outputs"][0]["data"][0])
        answers[about["pid"]] = about
        return len(answers) == count

    wait_until(is_complete, f"all instances of {model} to answer")
    return sorted(answers.values(), key=lambda each: each["visible"] or "")


def on_gpu(number, **more):
    files = [*OF_DRIVER, f"nvidia{number}", "nvidiactl"]
    uuid = f"GPU-stand-in-{number}"
    return {"kind": "GPU", "device_id": "0", "visible": uuid, "cuda": [0, 0, 1], "files": files, "bus": True, **more}


EVERY_FILE = [*OF_DRIVER, "nvidia0", "nvidia1", "nvidiactl"]
OF_OTHERS = "dri/renderD128"
NO_GPU = {"kind": "CPU", "device_id": "0", "visible": "", "cuda": [100, 100, 0], "files": [], "bus": True}


@pytest.mark.spec("pb-I07")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("every", [on_gpu(0), on_gpu(1)]),
        ("second", [on_gpu(1), on_gpu(1)]),
        ("free", [on_gpu(1, files=[*EVERY_FILE, OF_OTHERS])]),
        ("auto", [on_gpu(1)]),
        ("cpu", [NO_GPU]),
        (
            "cpu_strict",
            [
                {
                    **NO_GPU,
                    "bus": False,
                    "cuda": "libcuda.so.1: cannot open shared object file: No such file or directory",
                }
            ],
        ),
        ("cpu_free", [{**NO_GPU, "files": [*EVERY_FILE, OF_OTHERS], "cuda": [0, 100, 0]}]),
        (
            "model",
            [{**on_gpu(0), "kind": "MODEL", "visible": None, "cuda": [0, 0, 2], "files": [*EVERY_FILE, OF_OTHERS]}],
        ),
    ],
)
def test_an_instance_sees_its_own_gpu_alone_and_as_the_first(server, model, expected):
    found = told(server, model, len(expected))
    assert [{name: value for name, value in each.items() if name != "pid"} for each in found] == expected


def test_the_configuration_names_the_gpus_by_the_servers_numbers(server):
    groups = {name: server.get(f"/v2/models/{name}/config").json["instance_group"] for name in ("every", "second")}
    assert {
        name: [(each["kind"], each["count"], each["gpus"]) for each in found] for name, found in groups.items()
    } == {
        "every": [("KIND_GPU", 1, [0, 1])],
        "second": [("KIND_GPU", 2, [1])],
    }


def test_instances_of_a_group_that_share_a_process_share_its_gpu(server):
    (together,), beside = told(server, "together"), told(server, "beside", 2)
    assert [each["visible"] for each in beside] == ["GPU-stand-in-0", "GPU-stand-in-1"]
    assert together["pid"] == beside[1]["pid"]
    reply = server.request("POST", "/v2/repository/models/elsewhere/load", {})
    assert reply.status == 400
    assert (
        "it has instances on other GPUs than the others, or on none: give all of them the same instance_group"
        in reply.error
    )


def test_a_model_of_a_group_cannot_leave_its_gpu_alone(server, repository):
    config = repository / "together" / "config.pbtxt"
    written = config.read_text()
    (before,) = told(server, "together")
    config.write_text(written.replace("kind: KIND_GPU gpus: [ 1 ]", "kind: KIND_CPU"))
    reply = server.request("POST", "/v2/repository/models/together/load", {})
    config.write_text(written)
    assert reply.status == 400
    assert "it has instances on other GPUs than the others, or on none" in reply.error
    assert told(server, "together") == [before]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(server):
    reply = server.request("POST", "/v2/repository/models/wrong/load", {})
    assert reply.status == 400
    assert (
        "instance group wrong_0 of model wrong specifies invalid or unsupported gpu id 2. GPUs with at least the minimum required "
        "CUDA compute compatibility of 6.000000 are: 0, 1. This machine has GPU 0: NVIDIA Stand-in, 80 GiB, GPU-stand-in-0; GPU 1:"
    ) in reply.error


@pytest.mark.thorough
def test_processes_that_are_forked_for_an_environment_have_a_gpu_each():
    """Their zygote may do what any of them may: so it needs a Python that other users can run, and they users of their
    own."""
    public = public_directory()
    try:
        machine = StandIn(public / "machine")
        python = machine.python(program=public_python(public))
        environment = copy_of(None, public / "environment")
        path = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
        groups = "instance_group { kind: KIND_GPU count: 2 } instance_group { kind: KIND_CPU }"
        write_model(public / "models", "packed", TELL, CONFIG + groups + path)
        with serving(public / "models", python=python, env=machine.environment()) as server:
            found = told(server, "packed", 5)
            assert len(server.zygote_pids()) == 1
    finally:
        shutil.rmtree(public)
    assert [{**each, "pid": 0} for each in found] == [
        {**each, "pid": 0} for each in (NO_GPU, on_gpu(0), on_gpu(0), on_gpu(1), on_gpu(1))
    ]


def test_an_instance_that_dies_comes_back_on_its_gpu(server):
    (before,) = told(server, "auto")
    os.kill(before["pid"], 9)
    server.wait_for("instance 'auto_0_0' is restarted")
    server.wait_until("/v2/models/auto/ready", 200)
    assert {**told(server, "auto")[0], "pid": 0} == {**on_gpu(1), "pid": 0}


def test_instances_move_to_another_gpu_while_the_model_serves(server, repository):
    config = repository / "auto" / "config.pbtxt"
    config.write_text(config.read_text().replace("gpus: [ 1 ]", "gpus: [ 0 ]"))
    assert server.request("POST", "/v2/repository/models/auto/load", {}).status == 200
    assert {**told(server, "auto")[0], "pid": 0} == {**on_gpu(0), "pid": 0}


def of_gpus(server):
    return {sample: value for sample, value in server.metrics().items() if "gpu_uuid" in sample}


def uuids(server):
    return {sample.split('"')[1] for sample in of_gpus(server)}


def test_metrics_of_gpus(server, machine):
    wait_until(lambda: of_gpus(server), "metrics")
    machine.tell(energy=7500)
    energy = 'nv_energy_consumption{gpu_uuid="GPU-stand-in-0"}'
    wait_until(lambda: of_gpus(server)[energy] == 2.5, "a later look at the GPU")
    first, second = 'gpu_uuid="GPU-stand-in-0"', 'gpu_uuid="GPU-stand-in-1"'
    assert of_gpus(server) == {
        **{
            f"{name}{{{label}}}": value
            for label in (first, second)
            for name, value in {
                "nv_gpu_utilization": 0.25,
                "nv_gpu_memory_total_bytes": 80 * 2**30,
                "nv_gpu_memory_used_bytes": 3 * 2**30,
                "nv_gpu_power_usage": 70.5,
                "nv_energy_consumption": 2.5,
            }.items()
        },
        f"nv_gpu_power_limit{{{first}}}": 700,
    }


def test_a_lost_gpu_has_no_metrics_and_the_others_do(server, machine):
    machine.tell(lost=1)
    wait_until(lambda: uuids(server) == {"GPU-stand-in-0"}, "the lost GPU to leave")
    server.wait_for("no metrics of GPU-stand-in-1: the NVIDIA driver answers 'GPU is lost'")
    machine.tell()
    wait_until(lambda: uuids(server) == {"GPU-stand-in-0", "GPU-stand-in-1"}, "it to come back")


@pytest.mark.thorough
def test_a_driver_that_hangs_holds_up_nothing(server, machine):
    machine.tell(hang=0)
    try:
        wait_until(lambda: of_gpus(server) == {}, "old figures to leave")
        server.wait_for("no metrics of GPUs: the NVIDIA driver answers 'nothing for 10 s'")
        assert told(server, "cpu")[0]["kind"] == "CPU"
    finally:
        machine.tell()
    wait_until(lambda: of_gpus(server), "metrics")


def test_a_server_ends_while_its_driver_hangs(machine, tmp_path):
    write_model(tmp_path, "m", TELL, CONFIG)
    flags = ("--metrics-interval-ms=20",)
    with serving(tmp_path, flags=flags, python=machine.python(), env=machine.environment()) as server:
        wait_until(lambda: of_gpus(server), "metrics")
        machine.tell(hang=0)
        try:
            assert server.stop() == 0
        finally:
            machine.tell()


def findings(machine, *arguments, **python):
    """What ``pybackend doctor`` finds on the machine, which has a GPU of another maker, too: status, facts and advice
    by layer."""
    done = subprocess.run(
        [*machine.python(OF_OTHERS, **python), "-m", "pybackend", "doctor", "--json", *map(str, arguments)],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return {row["layer"]: (row["status"], row["found"], row["advice"]) for row in json.loads(done.stdout)}


@pytest.mark.around("pybackend_tools")
def test_the_doctor_starts_cuda_where_models_would_and_says_which_gpus_they_see(machine, repository):
    machine.tell()
    found = findings(machine, repository, "--http-port=0", "--grpc-port=0", "--metrics-port=0", "--exit-on-error=false")
    assert found["gpu"] == (
        "ok",
        "This machine has GPU 0: NVIDIA Stand-in, 80 GiB, GPU-stand-in-0; GPU 1: NVIDIA Stand-in, 80 GiB, GPU-stand-in-1. "
        f"Driver 580.65.06, for CUDA 13.0 and older, in {machine.libraries}",
        "",
    )
    assert found["gpu in models"] == (
        "ok",
        "CUDA starts at standard and at strict, and an instance on GPU 0 sees that one alone",
        "",
    )
    facts = {name: found[f"model '{name}'"][1] for name in ("every", "second", "cpu")}
    assert facts == {
        "every": "version 1: 2 processes on the server's Python, GPU 0, 1; sandbox standard",
        "second": "version 1: 2 processes on the server's Python, GPU 1; sandbox strict",
        "cpu": "version 1: 1 process on the server's Python; sandbox standard",
    }
    assert "specifies invalid or unsupported gpu id 2" in found["model 'wrong'"][2]


@pytest.mark.thorough
@pytest.mark.around("pybackend_tools")
def test_the_doctor_names_a_driver_that_refuses_and_a_device_file_that_is_missing(machine):
    machine.tell(fault=9)
    try:
        found = findings(machine)
    finally:
        machine.tell()
    driver = "The NVIDIA driver answers 'Driver Not Loaded'. Load it (modprobe nvidia), or install it again."
    assert found["gpu"] == ("warn", "none", driver)
    assert "gpu in models" not in found
    found = findings(machine, left_out="nvidia-uvm")
    status, text, advice = found["gpu"]
    assert (status, text.rpartition("; ")[2]) == ("warn", "/dev/nvidia-uvm is missing")
    assert advice == "make it: nvidia-modprobe -u -c=0, as root"
    missing = "CUDA answers CUDA_ERROR_NO_DEVICE"
    assert found["gpu in models"][:2] == ("warn", f"at standard {missing}; at strict {missing}")
