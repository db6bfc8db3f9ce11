"""What the author of a model may put into its directory, or write into its configuration, without harm to the others."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pybackend_wire.bytes_tensor import encode_elements
from tests.faults.leaks import figure
from tests.support.inference import infer
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import ServerProcess, serving

SECRET = "-----BEGIN PRIVATE KEY-----"
TERABYTE = 1 << 40
MOST_HOST_KB = 600_000
"""What the server may have taken at its worst: each of these models could have had gigabytes."""

BATCHED = 'backend: "python" max_batch_size: 4 input [ %s ] output [ %s ] ' % (  # noqa: UP031  of braces, there are many
    tensors(IN=("TYPE_FP32", [1])),
    tensors(OUT=("TYPE_FP32", [1])),
)
SEQUENCE = BATCHED + "sequence_batching { %s control_input [ { name: 'START' control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ] }"  # fmt: skip
WARMUP = 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: %s %s } } }'
STATE = (
    'state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: %s '
    'initial_state { data_type: TYPE_FP32 dims: %s name: "s" %s } }'
)
LABELS = identity_config().replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"')

FILES = {
    "config": (identity_config(), "config.pbtxt"),
    "labels": (LABELS, "labels.txt"),
    "warmup": (BATCHED + WARMUP % ("[ 1 ]", 'input_data_file: "data"'), "warmup/data"),
    "state": (SEQUENCE % (STATE % ("[ 1 ]", "[ 1 ]", 'data_file: "data"')), "initial_state/data"),
}
"""By kind: a configuration that names the file, and where it lies."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    repository = tmp_path_factory.mktemp("hostile")
    (repository.parent / "secret").write_text(SECRET)
    write_model(repository, "honest", IDENTITY, identity_config())
    write_laboratory(repository)
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(
        repository, flags=("--model-control-mode=explicit", "--load-model=honest", "--load-model=laboratory")
    ) as server:
        yield server
        assert SECRET not in server.output


def load(server: ServerProcess, name: str) -> str:
    """Load a model while others are served; returns why it is refused."""
    begin_s = time.monotonic()
    answer = laboratory(server)(f"""
        try:
            pb_utils.load_model("{name}")
        except pb_utils.TritonModelException as error:
            return out(OUT=text(error))
        return out(OUT=text(""))
    """)
    took_s = time.monotonic() - begin_s
    assert infer(server, "honest", {"IN": np.ones(1, np.float32)})["OUT"] == [1]
    assert figure(server, "VmHWM") < MOST_HOST_KB, f"after {took_s:.1f} s"
    return answer["OUT"][0].decode()


def place(repository: Path, kind: str, name: str) -> Path:
    """Write a model whose file of one kind is still to be put there; returns where."""
    config, filename = FILES[kind]
    path = write_model(repository, name, IDENTITY, config) / filename
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("kind", FILES)
def test_a_fifo_stops_nobody(server, repository, kind):
    os.mkfifo(place(repository, kind, f"fifo_{kind}"))
    assert "it is a FIFO, not a regular file" in load(server, f"fifo_{kind}")


@pytest.mark.parametrize("kind", FILES)
def test_a_device_stops_nobody(server, repository, kind):
    """``/dev/zero`` never ends."""
    path = place(repository, kind, f"device_{kind}")
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    assert "it is a device, not a regular file" in load(server, f"device_{kind}")


@pytest.mark.parametrize("kind", ["config", "labels", "state"])
def test_a_file_of_a_terabyte_stops_nobody(server, repository, kind):
    with place(repository, kind, f"sparse_{kind}").open("wb") as file:
        file.truncate(TERABYTE)
    assert f"it has {TERABYTE} bytes, more than the " in load(server, f"sparse_{kind}")


def test_data_that_a_tensor_has_no_use_for_are_not_read(server, repository):
    with place(repository, "warmup", "sparse_warmup").open("wb") as file:
        file.truncate(TERABYTE)
    assert load(server, "sparse_warmup") == ""


@contextmanager
def leased(path: Path):
    """Another process holds a lease on a file, and does not give it up."""
    code = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    arguments = [sys.executable, "-c", code, path]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.communicate("")


@pytest.mark.parametrize("kind", FILES)
def test_a_lease_stops_nobody(server, repository, kind):
    path = place(repository, kind, f"leased_{kind}")
    path.write_bytes(FILES[kind][0].encode() if kind == "config" else b"1234")
    with leased(path):
        assert "another process holds a lease on it" in load(server, f"leased_{kind}")
    assert load(server, f"leased_{kind}") == ""


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("target", ["relative", "absolute", "directory"])
def test_a_link_hands_nothing_out(server, repository, kind, target):
    """Neither to the model, nor to clients, nor in an error."""
    name = f"{target}_link_{kind}"
    path = place(repository, kind, name)
    secret = repository.parent / "secret"
    if target == "directory" and path.parent.name != name:
        path.parent.rmdir()
        path.parent.symlink_to(repository.parent)
        (repository.parent / path.name).write_text(SECRET)
    else:
        path.symlink_to(secret if target == "absolute" else os.path.relpath(secret, path.parent))
    said = load(server, name)
    assert "leads out of" in said
    assert "PRIVATE" not in said


def test_what_is_there_outside_is_not_told(server, repository):
    """Whether a model's file leads to something is found out by its process, with its own rights."""
    reasons = []
    for name, target in (("probes_file", repository.parent / "secret"), ("probes_nothing", repository.parent / "none")):
        directory = write_model(repository, name, None, identity_config())
        (directory / "1/model.py").symlink_to(target)
        reasons.append(load(server, name))
    assert not any("model file not found" in reason for reason in reasons)
    assert all(reasons)


def test_a_link_to_everything_is_not_walked_to_its_end(server, repository):
    directory = write_model(repository, "walks", IDENTITY, identity_config())
    (directory / "everything").symlink_to("/")
    assert load(server, "walks") == ""
    server.wait_for("walks and what its links lead to hold more than")


def test_the_layout_of_a_configmap_is_served(server, repository):
    """Each name is a link to ``..data``, which is a link to what was written last; the model itself is a link, too."""
    directory = repository.parent / "mounted"
    real = directory / "..2026_01_01"
    config = BATCHED.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"')
    write_model(directory, real.name, IDENTITY, config + WARMUP % ("[ 1 ]", 'input_data_file: "data"'))
    (real / "labels.txt").write_text("one\n")
    (real / "data").write_bytes(bytes(4))
    (directory / "..data").symlink_to(real.name)
    for name in ("config.pbtxt", "labels.txt", "1"):
        (directory / name).symlink_to(f"..data/{name}")
    (directory / "warmup").mkdir()
    (directory / "warmup/data").symlink_to("../..data/data")
    (repository / "configmap").symlink_to(directory)
    assert load(server, "configmap") == ""
    assert infer(server, "configmap", {"IN": np.ones((1, 1), np.float32)})["OUT"] == [[1]]


def test_versions_may_be_links_to_elsewhere(server, repository):
    shared = write_model(repository.parent / "shared", "code", IDENTITY)
    directory = write_model(repository, "linked_version", None, identity_config())
    (directory / "1").rmdir()
    (directory / "1").symlink_to(shared / "1")
    assert load(server, "linked_version") == ""


# --- Numbers ---

TENSOR = '{ name: "%s%d" data_type: TYPE_FP32 dims: [ 1 ] } '

NUMBERS = {
    "priority_levels": (
        BATCHED + "dynamic_batching { priority_levels: 1000000000 default_priority_level: 1 }",
        "'dynamic_batching.priority_levels' of model 'priority_levels' is too large: 1000000000, and the most is 1000",
    ),
    "max_candidate_sequences": (
        SEQUENCE % "oldest { max_candidate_sequences: 2000000000 }",
        "'sequence_batching.oldest.max_candidate_sequences' of model 'max_candidate_sequences' is too large: 2000000000",
    ),
    "many_dims": (
        f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: [ {"1," * 65}1 ] }}',
        "'input.dims' of model 'many_dims' is too large: 66 entries, and the most is 64",
    ),
    "million_dims": (
        f'backend: "python" input {{ name: "IN" data_type: TYPE_FP32 dims: [ {"1, " * 1_000_000}1 ] }}',
        "bytes, more than the 2097152 that it may have",
    ),
    "many_inputs": (
        'backend: "python" ' + "".join(f"input {{ name: '{number}' }} " for number in range(50_000)),
        "'input' of model 'many_inputs' is too large: 50000 entries, and the most is 10000",
    ),
    "instances": (
        identity_config(extra="instance_group [ { count: 2000000000 kind: KIND_CPU } ]"),
        "'instance_group.count' of model 'instances' is too large: 2000000000, and the most is 1000",
    ),
    "groups": (
        identity_config(extra="instance_group [ { count: 600 kind: KIND_CPU }, { count: 600 kind: KIND_CPU } ]"),
        "1200 instances in all groups, and the most is 1000",
    ),
    "warmup_dims": (
        identity_config() + WARMUP % ("[ 1000000000000 ]", "zero_data: true"),
        "4000000000000 bytes: all samples together exceed the limit of 1073741824 bytes",
    ),
    "warmup_batch": (
        BATCHED + WARMUP.replace("batch_size: 1", "batch_size: 4000000000") % ("[ 1 ]", "zero_data: true"),
        "'model_warmup.batch_size' of model 'warmup_batch' is too large: 4000000000",
    ),
    "state_dims": (
        SEQUENCE % (STATE % ("[ 1000000000000 ]", "[ 1000000000000 ]", "zero_data: true")),
        "begins with 4000000000000 bytes: all states together have more than the 268435456 that they may have",
    ),
    "steps": (
        'platform: "ensemble" ensemble_scheduling { '
        + 'step { model_name: "x" input_map { key: "a" value: "b" } } ' * 20_000
        + "}",
        "'ensemble_scheduling.step' of model 'steps' is too large: 20000 entries, and the most is 1000",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_without_measure_is_refused(server, repository, name):
    config, expected = NUMBERS[name]
    write_model(repository, name, IDENTITY, config)
    assert expected in load(server, name)


COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]})
        %s
        return config

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        (
            "completed_dims",
            'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1] * 1_000_000})',
            "the most is 500000 values",
        ),
        (
            "completed_inputs",
            'config.as_dict()["input"] = [{"name": str(n), "data_type": "TYPE_FP32", "dims": [1]} for n in range(50_000)]',
            "'input' of model 'completed_inputs' is too large: 50000 entries, and the most is 10000",
        ),
        (
            "completed_levels",
            'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}); '
            'config.set_dynamic_batching(); config.as_dict()["dynamic_batching"] = {"priority_levels": 10**9, "default_priority_level": 1}',
            "'dynamic_batching.priority_levels' of model 'completed_levels' is too large: 1000000000",
        ),
    ],
)
def test_what_a_model_completes_is_held_to_the_same_bounds(server, repository, name, code, expected):
    write_model(repository, name, COMPLETES % code, 'backend: "python"')
    assert expected in load(server, name)


def test_slots_and_levels_cost_nothing_until_they_are_used(server, repository):
    """The largest numbers that are served: each would be gigabytes, were all made that they allow."""
    direct = SEQUENCE.replace("max_batch_size: 4", "max_batch_size: 2000000000") % "direct { }"
    models = {
        "many_slots": direct,
        "many_candidates": SEQUENCE % "oldest { max_candidate_sequences: 1000000 }",
        "many_levels": BATCHED + "dynamic_batching { priority_levels: 1000 default_priority_level: 1000 }",
    }
    for name, config in models.items():
        write_model(repository, name, IDENTITY, config)
        assert load(server, name) == ""
        for number in (1, 2, 3):
            parameters = {"sequence_id": number, "sequence_start": True, "sequence_end": True, "priority": number}
            body = {
                "parameters": parameters if "levels" not in name else {"priority": 1000 - number},
                "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [number]}],
            }
            assert server.infer(name, body).json["outputs"][0]["data"] == [number]
    assert figure(server, "VmHWM") < MOST_HOST_KB


def test_strings_of_a_sample_are_bounded(server, repository):
    config = f'backend: "python" input [ {tensors(IN=("TYPE_STRING", [-1]))} ] output [ {tensors(OUT=("TYPE_STRING", [-1]))} ]'
    sample = WARMUP.replace("TYPE_FP32", "TYPE_STRING") % ("[ 1 ]", 'input_data_file: "data"')
    directory = write_model(repository, "strings", IDENTITY, config + sample)
    (directory / "warmup").mkdir()
    with (directory / "warmup/data").open("wb") as file:
        file.truncate(1 << 30)
    assert "it has 1073741824 bytes, more than the 33554432" in load(server, "strings")
    (directory / "warmup/data").write_bytes(encode_elements([b"word"]))
    assert load(server, "strings") == ""


def test_labels_are_bounded(server, repository):
    place(repository, "labels", "labels").write_bytes(b"\n" * 2_000_000)
    assert "more than 1000000 labels" in load(server, "labels")


def test_versions_are_bounded(server, repository):
    directory = write_model(repository, "versions", IDENTITY, identity_config(extra="version_policy { all { } }"))
    for version in range(2, 1002):
        (directory / str(version)).mkdir()
    assert "chooses 1001 versions, and the most is 1000" in load(server, "versions")
    for version in range(1002, 10_002):
        (directory / str(version)).mkdir()
    assert "holds 10001 directories, and the most is 10000" in load(server, "versions")
