"""What the driver says about GPUs, and what the server makes of it; the driver's libraries are stand-ins."""

import json
import subprocess

import pytest

from pybackend.gpus import GpuAccess, Gpus, find_gpus
from pybackend_wire.installation import install_command
from tests.support.nvidia import StandIn, needs_stand_in

FIND = """
import dataclasses, json, sys
from pybackend import gpus as module
if "--impatient" in sys.argv:
    sys.argv.remove("--impatient")
    module.ANSWER_LIMIT_S = 0.5
gpus = module.find_gpus()
accesses = {word: gpus.access(word.split()[0], int(word.split()[1])) for word in sys.argv[1:]}
found = [dataclasses.asdict(gpu) for gpu in gpus.found]
print(json.dumps([found, gpus.summary, gpus.is_fault, {word: dataclasses.asdict(each) for word, each in accesses.items()}]))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return StandIn(tmp_path_factory.mktemp("gpus"))


def found_on(machine, *accesses, python=(), variables=None):
    command = [*(python or machine.python()), "-c", FIND, *accesses]
    environment = machine.environment(**(variables or {}))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def device(number):
    return f"/dev/nvidia{number}"


@needs_stand_in
def test_two_gpus_by_the_names_that_hold_everywhere(machine, snapshot):
    machine.tell(gpus=2)
    found, summary, is_fault, access = found_on(machine, "GPU 1", "MODEL 0", "CPU 0", "GPU 2", "GPU -1")
    assert [(each["uuid"], each["visible"], each["files"]) for each in found] == [
        ("GPU-stand-in-0", "GPU-stand-in-0", [device(0)]),
        ("GPU-stand-in-1", "GPU-stand-in-1", [device(1)]),
    ]
    assert summary == snapshot
    assert not is_fault
    common = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    of_driver = {"libraries": str(machine.libraries), "library_path": str(machine.libraries)}
    nothing = {"visible": "", "files": [], "libraries": "", "library_path": ""}
    assert access == {
        "GPU 1": {"visible": "GPU-stand-in-1", "files": [*common, device(1)], **of_driver},
        "MODEL 0": {"visible": None, "files": [*common, device(0), device(1)], **of_driver},
        "CPU 0": nothing,
        "GPU 2": nothing,
        "GPU -1": nothing,
    }


@needs_stand_in
def test_a_single_gpu_has_a_number_because_some_libraries_read_nothing_else(machine):
    machine.tell(gpus=1)
    assert [each["visible"] for each in found_on(machine)[0]] == ["0"]


@needs_stand_in
@pytest.mark.parametrize(
    ("told", "uuids"),
    [
        ("1", ["GPU-stand-in-1"]),
        ("1, 0", ["GPU-stand-in-1", "GPU-stand-in-0"]),
        ("GPU-stand-in-1", ["GPU-stand-in-1"]),
        ("0,7,1", ["GPU-stand-in-0"]),
        ("0,0", ["GPU-stand-in-0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_the_servers_own_cuda_visible_devices_chooses_and_orders(machine, told, uuids):
    machine.tell(gpus=2)
    found, summary, is_fault, _ = found_on(machine, variables={"CUDA_VISIBLE_DEVICES": told})
    assert [each["uuid"] for each in found] == uuids
    assert is_fault is not bool(uuids)
    if not uuids:
        assert summary == f"CUDA_VISIBLE_DEVICES={told!r} hides the 2 GPUs of this machine."


@needs_stand_in
def test_mig_devices_are_gpus_of_their_own_with_the_files_that_grant_them(tmp_path):
    machine = StandIn(tmp_path / "machine", gpus=1, mig=2)
    for instance in (1, 2):
        machine.capability(f"gpu0/mig/gi{instance}", instance * 10)
        machine.capability(f"gpu0/mig/gi{instance}/ci0", instance * 10 + 1)
    python = machine.python(*(f"nvidia-caps/nvidia-cap{minor}" for minor in (10, 11, 20, 21)))
    found, _, _, access = found_on(machine, "GPU 1", python=python)
    assert [each["visible"] for each in found] == ["MIG-stand-in-0-1", "MIG-stand-in-0-2"]
    caps = ["/dev/nvidia-caps/nvidia-cap20", "/dev/nvidia-caps/nvidia-cap21"]
    assert access["GPU 1"]["files"][3:] == [device(0), *caps]
    only = found_on(machine, python=python, variables={"CUDA_VISIBLE_DEVICES": "MIG-stand-in-0-2"})[0]
    assert [each["uuid"] for each in only] == ["MIG-stand-in-0-2"]


FAULTS = {
    4: "The NVIDIA driver answers 'Insufficient Permissions'. Let the server's user read and write /dev/nvidia*: the driver's "
    "option NVreg_DeviceFileMode=0666 does so.",
    9: "The NVIDIA driver answers 'Driver Not Loaded'. Load it (modprobe nvidia), or install it again.",
    13: "The NVIDIA driver answers 'Function Not Found'. The driver is too old: install a newer one.",
    18: "The NVIDIA driver answers 'RM has detected an NVML/RM version mismatch'. The driver was updated while it was in use: restart the "
    "machine.",
    999: "The NVIDIA driver answers 'Unknown Error'. nvidia-smi may say more.",
}


@needs_stand_in
@pytest.mark.parametrize("code", FAULTS)
def test_what_the_driver_refuses_is_said_in_its_words_with_the_way_out(machine, code):
    machine.tell(gpus=2, fault=code)
    assert found_on(machine)[:3] == [[], FAULTS[code], True]


@needs_stand_in
def test_a_driver_that_hangs_is_given_up_and_the_process_ends(machine):
    machine.tell(gpus=2, hang=1)
    text = "The NVIDIA driver has not named its GPUs within 0.5 s. See whether nvidia-smi does."
    assert found_on(machine, "--impatient")[:3] == [[], text, True]


@needs_stand_in
def test_a_driver_without_gpus_is_a_fault(machine):
    machine.tell(gpus=0)
    text = "The NVIDIA driver says 'No devices were found'. nvidia-smi may say more."
    assert found_on(machine)[:3] == [[], text, True]


@needs_stand_in
def test_the_drivers_library_is_missing(machine, snapshot):
    found, summary, is_fault, _ = found_on(machine, variables={"LD_LIBRARY_PATH": ""})
    assert (found, is_fault) == ([], True)
    assert summary == snapshot
    assert "start a container with --gpus" in summary


@needs_stand_in
def test_a_device_file_that_the_server_may_not_open_is_named(machine, snapshot):
    machine.tell(gpus=2)
    python = machine.python(left_out="nvidia1")
    found, summary, is_fault, _ = found_on(machine, python=python)
    assert (found, is_fault) == ([], True)
    assert summary == snapshot


@needs_stand_in
def test_without_nvidia_ml_py_the_error_says_what_to_install(machine, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    found, summary, is_fault, _ = found_on(machine, variables={"PYTHONPATH": str(tmp_path)})
    assert (found, is_fault) == ([], True)
    assert summary == f"The server cannot ask the NVIDIA driver for its GPUs: {install_command('gpu')}."


def test_the_operator_can_hide_them():
    hidden = find_gpus({"TRITON_SERVER_CPU_ONLY": "1"})
    assert (hidden.found, hidden.is_fault) == ((), False)
    assert hidden.summary == "TRITON_SERVER_CPU_ONLY is set: the server uses no GPU."


def test_nothing_is_asked_where_there_is_no_driver(snapshot):
    assert Gpus().summary == snapshot


def test_the_loader_finds_the_drivers_libraries_behind_those_of_an_environment():
    access = GpuAccess("0", ("/dev/nvidia0",), "/opt/driver", "/opt/driver")
    assert access.variables({}) == {"CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": "/opt/driver"}
    own = {"LD_LIBRARY_PATH": "/env/lib", "PYBACKEND_LIBRARY_PATH": "/env/lib"}
    both = "/env/lib:/opt/driver"
    assert access.variables(own) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_LIBRARY_PATH": both,
        "PYBACKEND_LIBRARY_PATH": both,
    }
    assert access.variables({"LD_LIBRARY_PATH": both}) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert GpuAccess(None).variables(own) == {}
