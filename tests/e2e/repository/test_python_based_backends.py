"""Python-based backends: one ``model.py`` in the backend directory serves models that bring nothing but data."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import IDENTITY, PREAMBLE, identity_config, write_model
from tests.support.server import serving

BACKEND = (
    PREAMBLE
    + """
import json
import os
import sys

import formula
import model


def settings():
    with open(os.path.join(pb_utils.get_model_dir(), "model.json")) as file:
        return json.load(file)


def imported(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        assert config.as_dict()["runtime"] == os.path.basename(__file__)
        if "dims" in settings():
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": settings()["dims"]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": settings()["dims"]})
            config.add_output({"name": "SEEN", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        self.factor = settings()["factor"]
        self.seen = {
            "args": args,
            "module": [__name__, __package__, __file__],
            "same": model.TritonPythonModel is TritonPythonModel,
            "path": sys.path,
            "model_dir": pb_utils.get_model_dir(),
            "finds_the_models_own": imported("beside_the_data"),
        }

    def execute(self, requests):
        seen = np.array([json.dumps(self.seen)], object)
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor("OUT", formula.scaled(request.inputs()[0].as_numpy(), self.factor)),
                    pb_utils.Tensor("SEEN", seen),
                ]
            )
            for request in requests
        ]
"""
)
FORMULA = """
def scaled(array, factor):
    return array * array.dtype.type(factor)
"""
DECOY = "raise RuntimeError('the backend serves, not this file')"
TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write_data(repository: Path, name: str, config: str, version: int = 1, **settings: object) -> Path:
    """A model without code: its configuration and its data."""
    directory = write_model(repository, name, None, config, version=version)
    (directory / str(version) / "model.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A backend directory and a repository of models, most of which it serves."""
    root = tmp_path_factory.mktemp("python_based")
    backends, repository = root / "backends", root / "models"
    (backends / "scale").mkdir(parents=True)
    (backends / "scale" / "model.py").write_text(BACKEND)
    (backends / "scale" / "formula.py").write_text(FORMULA)
    (backends / "native").mkdir()
    (backends / "native" / "libtriton_native.so").write_bytes(b"")

    write_data(repository, "double", 'backend: "scale"', factor=2, dims=[-1])
    write_data(repository, "negative", f'backend: "scale" runtime: "model.py" {TENSORS}', version=3, factor=-1)
    policy = 'backend: "scale" version_policy { all { } }'
    write_data(repository, "versions", policy, version=1, factor=10, dims=[2])
    decoyed = write_data(repository, "versions", policy, version=2, factor=100, dims=[2])
    (decoyed / "2" / "model.py").write_text(DECOY)
    (decoyed / "model.py").write_text(DECOY)
    (decoyed / "2" / "beside_the_data.py").write_text("")
    write_data(repository, "no_backend", f'backend: "missing" {TENSORS}')
    write_data(repository, "no_runtime", f'backend: "native" runtime: "model.py" {TENSORS}')
    write_data(repository, "native", f'backend: "native" {TENSORS}')
    write_data(repository, "no_data", f'backend: "scale" {TENSORS}')  # its initialize fails
    write_model(repository, "ordinary", IDENTITY, identity_config())
    return backends, repository


@pytest.fixture(scope="module")
def server(places):
    backends, repository = places
    # Relative, as a shell would have it: what models see is absolute all the same.
    flags = (f"--backend-directory={backends.name}", "--exit-on-error=false")
    with serving(repository, flags=flags, ready=False, cwd=backends.parent) as server:
        server.wait_for(r'"versions +\| 2 ')
        yield server


def seen(server, model):
    (document,) = infer(server, model, {"IN": np.ones(2, np.float32)})["SEEN"]
    return json.loads(document)


@pytest.mark.spec("pb-K01", "srv-R30")
def test_one_backend_serves_models_by_their_data(server):
    array = np.array([1.5, -2], np.float32)
    for model, factor in (("double", 2), ("negative", -1), ("versions/versions/1", 10), ("versions/versions/2", 100)):
        assert infer(server, model, {"IN": array})["OUT"].tolist() == (array * factor).tolist(), model


@pytest.mark.spec("pb-K01")
@pytest.mark.parametrize(("model", "version"), [("double", 1), ("negative", 3), ("versions", 2)])
def test_what_the_backend_finds(server, places, model, version):
    """The module is plain ``model``, imports come from its own directory, the model's directories only hold data."""
    backends, repository = places
    found = seen(server, model)
    assert found["module"] == ["model", "", str(backends / "scale" / "model.py")]
    assert found["same"]
    assert str(backends / "scale") in found["path"]
    assert not [path for path in found["path"] if path.startswith(str(repository))]
    assert found["path"][-1] == str(backends.parent), "the working directory"
    assert not found["finds_the_models_own"]
    assert found["model_dir"] == str(repository / model / str(version))
    assert found["args"]["model_repository"] == str(repository / model)
    assert (found["args"]["model_name"], found["args"]["model_version"]) == (model, str(version))


@pytest.mark.spec("pb-K03")
@pytest.mark.parametrize("model", ["double", "negative"])
def test_runtime_is_shown_whether_it_was_configured_or_found(server, model):
    config = server.get(f"/v2/models/{model}/config").json
    assert (config["backend"], config["runtime"]) == ("scale", "model.py")
    assert json.loads(seen(server, model)["args"]["model_config"])["runtime"] == "model.py"


def test_a_python_model_beside_them_is_served_as_ever(server):
    assert infer(server, "ordinary", {"IN": np.ones(3, np.float32)})["OUT"].tolist() == [1, 1, 1]
    assert server.get("/v2/models/ordinary/config").json["runtime"] == ""


@pytest.mark.spec("pb-K01", "pb-K03")
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "no_backend",
            "Invalid argument: unable to find backend library for backend 'missing', try specifying runtime on "
            "the model configuration",
        ),
        (
            "no_runtime",
            "Invalid argument: unable to find Python backend based backend library 'model.py' for model "
            "'no_runtime', searched: '{backends}/native/model.py'",
        ),
        ("native", "Unsupported: unable to load shared library"),
    ],
)
def test_models_that_cannot_be_served(server, places, status_of, model, expected, snapshot):
    status = status_of(server, model, "-")
    assert status.startswith("UNAVAILABLE: " + expected.format(backends=places[0]))
    assert status == snapshot
    assert server.get(f"/v2/models/{model}/ready").status == 400


def test_an_error_of_the_backend_names_its_file(server, places):
    failed = server.wait_for(r"failed to load 'no_data' version 1: (.*)")[1]
    assert f"{places[0]}/scale/model.py" in failed
    assert "KeyError: 'factor'" in failed


@pytest.mark.spec("pb-V08")
def test_settings_of_the_python_backend_are_accepted(places, tmp_path):
    backends, _ = places
    write_data(tmp_path, "double", 'backend: "scale"', factor=2, dims=[-1])
    write_model(tmp_path, "ordinary", IDENTITY, identity_config())
    settings = (
        "shm-default-byte-size=10485760",
        "shm-growth-byte-size=1048576",
        "shm-region-prefix-name=prefix0_",
        "shm_message_queue_size=100",
        "thread-pool-size=2",
        "stub-timeout-seconds=120",
        f"backend-directory={backends}",
    )
    flags = tuple(f"--backend-config=python,{setting}" for setting in settings)
    with serving(tmp_path, flags=(f"--backend-directory={backends}", *flags)) as server:
        assert infer(server, "double", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [2]
        assert infer(server, "ordinary", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [1]


@pytest.mark.spec("pb-V08")
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "shm-default-byte-size=1048575",
            "shm-default-byte-size can't be smaller than 4 MiBs. The bound that holds is 1 MiB.",
        ),
        ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("shm_message_queue_size=many", "shm_message_queue_size must be a whole number."),
        ("thread-pool-size=0", "thread-pool-size can't be less than 1."),
        ("stub-timeout-seconds=-1", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("shm-region-prefix-name=", "--backend-config option format is '<backend name>,<setting>=<value>'."),
    ],
)
def test_wrong_settings_of_the_python_backend_are_refused(tmp_path, setting, expected):
    with serving(tmp_path, flags=(f"--backend-config=python,{setting}",), ready=False) as server:
        assert server.wait() == 1
        assert server.output.splitlines()[-1].startswith(f'Bad option: "--backend-config". {expected} Got ')
