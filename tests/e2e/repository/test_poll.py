"""Mode poll: the server follows its repositories."""

import os
import re
import shutil

import numpy as np
import pytest

from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [1]))} ]
output [ {tensors(OUT=("TYPE_INT32", [2]))} ]
version_policy {{ all {{}} }}
instance_group {{ kind: KIND_CPU }}
"""


def telling(number):
    """A model that answers with a number and its process."""
    return f"""
import os

class TritonPythonModel:
    def execute(self, requests):
        answer = np.array([{number}, os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""


def told(server, name, version=""):
    """The number and the process of a model; the status if it does not serve."""
    answer = infer(server, f"{name}/versions/{version}" if version else name, {"IN": np.zeros(1, np.float32)})
    return tuple(answer["OUT"].tolist()) if answer.status == 200 else (answer.status, 0)


def tells(server, name, number, version=""):
    """Wait until a model answers with a number, or a status."""
    last = [None]

    def is_so():
        last[0] = told(server, name, version)[0]
        return last[0] == number

    wait_until(is_so, lambda: f"{name} still answers {last[0]}, not {number}: {server.output}", deadline_s=60)


def rows(server, name):
    return [row for row in server.request("POST", "/v2/repository/index").json if row["name"] == name]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository, other = tmp_path_factory.mktemp("poll"), tmp_path_factory.mktemp("other")
    for name in ("changing", "deleted", "kept", "twice"):
        write_model(repository, name, telling(1), CONFIG)
    with serving(repository, other, flags=("--model-control-mode=Poll", "--repository-poll-secs=1")) as server:
        server.repository, server.other = repository, other
        yield server


@pytest.mark.spec("srv-R05")
def test_models_are_added_changed_and_removed(server):
    kept = told(server, "kept")
    write_model(server.repository, "added", telling(5), CONFIG)
    write_model(server.repository, "changing", telling(2), None)
    tells(server, "added", 5)
    tells(server, "changing", 2)
    shutil.rmtree(server.repository / "added")
    # With a version beside it, the unchanged version goes on in its process.
    before = told(server, "changing", "1")
    write_model(server.repository, "changing", telling(3), None, version=2)
    tells(server, "added", 404)
    tells(server, "changing", 3)
    assert told(server, "changing", "1") == before
    unloaded = [{"name": "added", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    wait_until(lambda: rows(server, "added") == unloaded, lambda: f"{rows(server, 'added')}")
    assert told(server, "kept") == kept
    assert server.get("/v2/health/ready").status == 200
    reply = server.request("POST", "/v2/repository/models/kept/load")
    assert (reply.status, reply.error[:57]) == (503, "explicit model load / unload is not allowed if polling is")


@pytest.mark.spec("srv-R05")
@pytest.mark.thorough
def test_a_broken_change_leaves_the_old_version_serving(server):
    before = told(server, "kept")
    directory = server.repository / "kept"
    (directory / "config.pbtxt").write_text("no: such_field")
    server.wait_for("failed to load 'kept', failed to poll from model repository: failed to read text proto")
    assert told(server, "kept") == before
    (directory / "config.pbtxt").write_text(CONFIG)
    write_model(server.repository, "kept", "raise ValueError('the weights are missing')", None)
    server.wait_for("failed to load 'kept' version 1: Internal: ValueError: the weights are missing")
    assert told(server, "kept") == before
    wait_until(lambda: "weights" in rows(server, "kept")[0].get("reason", ""), lambda: f"{rows(server, 'kept')}")
    (row,) = rows(server, "kept")
    assert row["state"] == "READY"
    assert re.match(
        r"serves as before; the change at \d\d:\d\d failed: ValueError: the weights are missing", row["reason"]
    )
    failed = 'pybackend_model_change_failed{model="kept"}'
    assert server.metrics()[failed] == 1
    # It may be tried again without a change, too.
    reply = server.request("POST", "/v2/repository/models/kept/load")
    assert (reply.status, "the weights are missing" in reply.error) == (400, True)
    write_model(server.repository, "kept", telling(9), None)
    tells(server, "kept", 9)
    wait_until(lambda: rows(server, "kept") == [{"name": "kept", "version": "1", "state": "READY"}], "all is well")
    assert server.metrics()[failed] == 0


@pytest.mark.spec("srv-R02")
@pytest.mark.spec("srv-R05")
def test_a_name_that_comes_to_be_in_two_repositories(server):
    write_model(server.other, "twice", telling(2), CONFIG)
    tells(server, "twice", 404)
    duplicate = {
        "name": "twice",
        "version": "",
        "state": "UNAVAILABLE",
        "reason": "model appears in two or more repositories",
    }
    wait_until(lambda: rows(server, "twice") == [duplicate], lambda: str(rows(server, "twice")))
    shutil.rmtree(server.repository / "twice")
    tells(server, "twice", 2)


def test_a_directory_is_loaded_once_it_is_complete(server):
    """It is copied piece by piece, and its parts alone would fail."""
    directory = server.repository / "copied"
    (directory / "1").mkdir(parents=True)
    for size in range(4):
        (directory / "1" / "model.py").write_text("class TritonPythonModel:\n" + "#" * size)
        told(server, "kept")
    write_model(server.repository, "copied", telling(4), CONFIG)
    tells(server, "copied", 4)
    assert "failed to load 'copied'" not in server.output


@pytest.mark.spec("srv-R31")
def test_a_config_map_is_swapped(tmp_path):
    """Kubernetes mounts a directory of links through ``..data``, and replaces that link."""
    model = tmp_path / "models" / "mounted"

    def write(number, stamp):
        there = model / f"..{stamp}"
        (there / "1").mkdir(parents=True)
        write_model(model, f"..{stamp}", telling(number), CONFIG)
        (model / "..data_tmp").symlink_to(there.name)
        (model / "..data_tmp").rename(model / "..data")

    write(1, "2024_01")
    for name in ("config.pbtxt", "1"):
        (model / name).symlink_to(f"..data/{name}")
    # The directory of another model is a link itself.
    write_model(tmp_path / "elsewhere", "linked", telling(1), CONFIG)
    (tmp_path / "models" / "linked").symlink_to(tmp_path / "elsewhere" / "linked")
    with serving(tmp_path / "models", flags=("--model-control-mode=poll", "--repository-poll-secs=1")) as server:
        assert told(server, "mounted")[0] == told(server, "linked")[0] == 1
        write(2, "2024_02")
        shutil.rmtree(model / "..2024_01")
        write_model(tmp_path / "elsewhere", "linked", telling(7), None)
        tells(server, "mounted", 2)
        tells(server, "linked", 7)
        assert server.get("/v2/health/ready").status == 200
        # Nor does a repository that is away for a while end its models.
        os.rename(tmp_path / "models", tmp_path / "away")
        server.wait_for("The repositories cannot be searched for changes, and models stay as they are")
        assert told(server, "mounted")[0] == 2
        os.rename(tmp_path / "away", tmp_path / "models")


@pytest.mark.spec("srv-R16")
@pytest.mark.spec("srv-R28")
def test_configurations_by_name_and_retries(tmp_path):
    """Both are flags of the start."""
    named = write_model(tmp_path, "named", telling(1), CONFIG + "max_batch_size: 1")
    (named / "configs").mkdir()
    (named / "configs" / "large.pbtxt").write_text(CONFIG + "max_batch_size: 64")
    write_model(tmp_path, "plain", telling(1), CONFIG + "max_batch_size: 2")
    fails_twice = """
import os

class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "tries"), "a+") as tries:
            tries.write("x")
            tries.seek(0)
            if len(tries.read()) < 3:
                raise ValueError("not yet")

    def execute(self, requests):
        return []
"""
    write_model(tmp_path, "a_patient", fails_twice, CONFIG)
    waits = f"{GATE}\nclass TritonPythonModel:\n    def initialize(self, args):\n        pass_gate(args['model_repository'], 'begun')\n"
    waits += "    def execute(self, requests):\n        return []\n"
    gates = [Gate(write_model(tmp_path, name, waits, CONFIG), "begun") for name in ("x", "y", "z")]
    flags = ("--model-config-name=large", "--model-load-retry-count=2", "--model-load-thread-count=2")
    with serving(tmp_path, flags=flags, ready=False) as server:
        wait_until(lambda: sum(gate.arrivals for gate in gates) == 2, "models do not load in parallel")
        assert len(re.findall("loading: [xyz]:1", server.output)) == 2
        for gate in gates:
            gate.open()
        server.wait_ready()
        sizes = [server.get(f"/v2/models/{name}/config").json["max_batch_size"] for name in ("named", "plain")]
        assert sizes == [64, 2]
        assert (tmp_path / "a_patient" / "tries").read_text() == "xxx"
        assert server.output.count("failed to load 'a_patient' version 1: Internal: ValueError: not yet") == 2


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server that would wait long for a change of a file that seems unfinished; the kernel tells it of all others."""
    repository = tmp_path_factory.mktemp("patient")
    write_model(repository, "edited", telling(1), CONFIG)
    with serving(repository, flags=("--model-control-mode=poll", "--repository-poll-secs=3600")) as server:
        server.repository = repository
        yield server


UNFINISHED = {
    "empty": "",
    "cut": CONFIG[: CONFIG.index("TYPE_INT32")],
    "without outputs": CONFIG[: CONFIG.index("output")],
    "gone": None,
}


@pytest.mark.spec("srv-R05")
@pytest.mark.parametrize("moment", UNFINISHED)
def test_a_configuration_that_is_being_written_is_awaited(patient, moment):
    config = patient.repository / "edited" / "config.pbtxt"
    before, loads = told(patient, "edited"), patient.output.count("model 'edited' has changed")
    if UNFINISHED[moment] is None:
        config.unlink()
    else:
        config.write_text(UNFINISHED[moment])
    marker = f"after-{moment.replace(' ', '-')}"
    write_model(patient.repository, marker, telling(7), CONFIG)
    tells(patient, marker, 7)  # a change that came later is carried out
    assert patient.output.count("model 'edited' has changed") == loads
    config.write_text(f'{CONFIG}\nparameters {{ key: "{marker}" value {{ string_value: "" }} }}')
    wait_until(lambda: patient.output.count("model 'edited' has changed") == loads + 1, "the whole file counts at once")
    wait_until(lambda: told(patient, "edited")[1] not in {before[1], 0}, "it is loaded")


@pytest.mark.spec("srv-R05")
def test_a_configuration_without_its_inputs_counts_if_it_stays(server):
    write_model(server.repository, "renamed", telling(1), CONFIG)
    tells(server, "renamed", 1)
    config = server.repository / "renamed" / "config.pbtxt"
    config.write_text(CONFIG.replace('"IN"', '"X"'))
    wait_until(lambda: infer(server, "renamed", {"X": np.zeros(1, np.float32)}).status == 200, "it has an input X")
