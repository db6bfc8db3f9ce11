"""Where a harness takes a model's configuration from: with the server's reader, and without it."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from pybackend_testing import ConfigError, HarnessError, ModelHarness
from tests.unit.testing.conftest import configuration

HAS_SERVER = importlib.util.find_spec("pybackend") is not None
needs_server = pytest.mark.skipif(not HAS_SERVER, reason="the server's package is not installed")

MODEL = "class TritonPythonModel:\n    execute = list\n    def initialize(self, args):\n        self.args = args\n"
PBTXT = """
name: "m" backend: "python" max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
parameters { key: "threshold" value: { string_value: "0.5" } }
"""


@pytest.fixture
def config_of(write, monkeypatch):
    """The configuration that the model got, with the server's reader or without."""

    def config_of(**arguments):
        with ModelHarness(write(MODEL), **arguments) as harness:
            document = json.loads(harness.model.args["model_config"])
            assert document == harness.config
            return document

    return config_of


@pytest.fixture(params=["with server", "without server"])
def server(request, monkeypatch):
    """Each test with the server's package and without."""
    if request.param == "with server":
        if not HAS_SERVER:
            pytest.skip("the server's package is not installed")
    else:
        monkeypatch.setitem(sys.modules, "pybackend.modelconfig.parser", None)
    return request.param


def test_a_dict(config_of, server):
    given = configuration(max_batch_size=4, parameters={"threshold": {"string_value": "0.5"}})
    before = json.dumps(given)
    document = config_of(config=given)
    assert json.dumps(given) == before, "it is not changed"
    assert document["max_batch_size"] == 4
    assert document["input"][0]["dims"] == [-1]
    assert document["parameters"] == {"threshold": {"string_value": "0.5"}}
    assert document["default_model_filename"] == "model.py"
    for field in ("platform", "batch_input", "cc_model_filenames", "model_warmup", "version_policy", "instance_group"):
        assert field in document


def test_both_ways_give_the_same(write, monkeypatch):
    if not HAS_SERVER:
        pytest.skip("the server's package is not installed")
    documents = []
    for without in (False, True):
        if without:
            monkeypatch.setitem(sys.modules, "pybackend.modelconfig.parser", None)
        with ModelHarness(write(MODEL), config=configuration({"A": "FP32 1", "B": "STRING -1 optional"})) as harness:
            documents.append(harness.config)
    with_server, without_server = documents
    assert {name: value for name, value in with_server.items() if name != "optimization"} == without_server


def test_json_text_and_a_json_file(config_of, server, tmp_path):
    text = json.dumps(configuration(max_batch_size=2))
    (tmp_path / "config.json").write_text(text)
    for given in (text, "  " + text, tmp_path / "config.json", str(tmp_path / "config.json")):
        assert config_of(config=given)["max_batch_size"] == 2


def test_overrides_and_parameters(config_of, server):
    document = config_of(
        config=configuration(max_batch_size=4, parameters={"a": {"string_value": "1"}, "b": {"string_value": "2"}}),
        overrides={"max_batch_size": 8},
        parameters={"b": "3", "c": "4"},
    )
    assert document["max_batch_size"] == 8
    assert {key: value["string_value"] for key, value in document["parameters"].items()} == {
        "a": "1",
        "b": "3",
        "c": "4",
    }


@needs_server
def test_config_pbtxt(write):
    directory = write(MODEL)
    (directory / "config.pbtxt").write_text(PBTXT)
    with ModelHarness(directory, parameters={"threshold": "0.7"}) as harness:
        assert harness.config["max_batch_size"] == 4
        assert harness.config["parameters"]["threshold"] == {"string_value": "0.7"}
    with ModelHarness(directory, config=configuration()) as harness:
        assert harness.config["max_batch_size"] == 0, "config= takes its place"
    (directory.parent / "other.pbtxt").write_text(PBTXT.replace("4", "5"))
    with ModelHarness(directory, config=directory.parent / "other.pbtxt") as harness:
        assert harness.config["max_batch_size"] == 5


def test_config_pbtxt_without_the_server_says_what_to_do(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pybackend.modelconfig.parser", None)
    directory = write(MODEL)
    (directory / "config.pbtxt").write_text(PBTXT)
    with pytest.raises(ConfigError) as caught:
        ModelHarness(directory).open()
    message = str(caught.value)
    assert message.startswith(
        f"failed to read {directory}/config.pbtxt: the package 'pybackend', which reads config.pbtxt, is not installed here (Python"
    )
    assert "config={...}" in message


@pytest.mark.parametrize(
    "given",
    [
        "{",
        {"input": [{"name": "IN"}], "output": [{}]},
        {"input": [{"name": "IN", "data_type": "TYPE_FP32"}], "output": [{}]},
        configuration("FP32 0"),
        configuration("FP99 1"),
        {"input": [{"data_type": "TYPE_FP32", "dims": [1]}], "output": [{}]},
        {"input": {}, "output": []},
        {"input": [{"nam": "IN"}]},
        5,
        "nothing.json",
    ],
    ids=str,
)
def test_what_is_wrong_is_explained(write, server, given, snapshot):
    with pytest.raises(HarnessError) as caught:
        ModelHarness(write(MODEL), config=given).open()
    assert str(caught.value) == snapshot


def test_parameters_are_texts(write):
    with pytest.raises(ConfigError, match=r"'threshold' is float, write '0\.5'"):
        ModelHarness(write(MODEL), config=configuration(), parameters={"threshold": 0.5}).open()


def test_completion_without_the_server(config_of, write, monkeypatch, server):
    code = """
    class TritonPythonModel:
        execute = list

        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
            config.set_max_batch_size(8)
            config.set_model_transaction_policy({"decoupled": True})
            return config
    """
    with ModelHarness(write(code), config={}) as harness:
        assert harness.decoupled
        assert harness.config["max_batch_size"] == 8
    with ModelHarness(write(code), config={"input": [{"name": "IN"}]}) as harness:
        assert harness.config["input"][0]["dims"] == [4]
        assert harness.config["input"][0]["data_type"] == "TYPE_FP32"


def test_the_sdk_alone_is_enough(tmp_path, write):
    """Nothing but the SDK, the wire and numpy can be imported."""
    import numpy as np

    import pybackend_sdk
    import pybackend_wire

    directory = write("class TritonPythonModel:\n    def execute(self, requests):\n        return [pb_utils.InferenceResponse(["
                      "pb_utils.Tensor('OUT', r.inputs()[0].as_numpy())]) for r in requests]\n")  # fmt: skip
    folders = {os.path.dirname(os.path.dirname(package.__file__)) for package in (pybackend_sdk, pybackend_wire, np)}
    code = (
        "import sys; sys.modules['pybackend'] = None\n"
        "from pybackend_testing import ModelHarness\n"
        f"with ModelHarness({str(directory)!r}, config={configuration()!r}) as harness:\n"
        "    print(harness.infer(IN=[1.0, 2.0])['OUT'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-W", "error", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(folders), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[1.0, 2.0]\n"), done.stderr


@needs_server
def test_an_ensemble_is_named_with_the_class_that_runs_it(tmp_path, snapshot):
    (tmp_path / "both" / "1").mkdir(parents=True)
    file = tmp_path / "both" / "config.pbtxt"
    file.write_text('platform: "ensemble"')
    with pytest.raises(ConfigError) as caught, ModelHarness(tmp_path / "both"):
        pass
    assert str(caught.value) == snapshot
