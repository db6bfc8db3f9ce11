"""A model's life in a harness: import, complete, initialise, finalize, and nothing left of it."""

import json

import pytest

from pybackend_testing import FinalizeError, HarnessError, LoadError, ModelDirectoryError, ModelHarness
from tests.unit.testing.conftest import DECOUPLED, configuration

ECHO = """
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.directory = pb_utils.get_model_dir()
        pb_utils.Logger.log_info("initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        pb_utils.Logger.log_info("finalize")
"""


def test_initialize_gets_the_seven_arguments(opened, tmp_path):
    harness = opened(ECHO, name="echo")
    args = dict(harness.model.args)
    config = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "echo_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path / "models" / "echo"),
        "model_version": "1",
        "model_name": "echo",
    }
    assert config == harness.config
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("echo", "python", 0)
    assert [tensor["name"] for tensor in config["input"]] == ["IN"]
    assert harness.model.directory == str(tmp_path / "models" / "echo" / "1")
    assert (harness.name, harness.version, harness.instance_name) == ("echo", 1, "echo_0")


@pytest.mark.parametrize(
    ("groups", "arguments", "expected"),
    [
        ([], {"instance_kind": "GPU", "device_id": 3}, ("m_0", "GPU", "3")),
        ([], {"instance_kind": "MODEL"}, ("m_0", "MODEL", "0")),
        ([{"kind": "KIND_CPU", "count": 2}], {}, ("m_0_0", "CPU", "0")),
        ([{"kind": "KIND_GPU", "gpus": [5]}], {}, ("m_0_0", "GPU", "0")),
        ([{"name": "fast", "kind": "KIND_MODEL"}], {"device_id": 1}, ("fast_0", "MODEL", "1")),
    ],
)
def test_what_the_model_is_told_to_run_on(opened, groups, arguments, expected):
    harness = opened(ECHO, configuration(instance_group=groups), **arguments)
    args = harness.model.args
    assert expected == (
        args["model_instance_name"], args["model_instance_kind"], args["model_instance_device_id"]
    )  # fmt: skip


def test_only_execute_is_required(opened):
    harness = opened("class TritonPythonModel:\n    def execute(self, requests): return []")
    assert harness.is_ready()
    harness.close()
    assert not harness.is_open


def test_life_is_logged_in_order(write):
    with ModelHarness(write(ECHO), config=configuration()) as harness:
        harness.infer(IN=[1.0])
    assert [(line.level, line.message) for line in harness.logs] == [("INFO", "initialize"), ("INFO", "finalize")]


def test_a_harness_can_be_opened_again(write):
    harness = ModelHarness(write(ECHO), config=configuration())
    for _ in range(2):
        with harness:
            assert harness.infer(IN=[1.0])["OUT"].tolist() == [1.0]
            with pytest.raises(HarnessError, match="is already open"):
                harness.open()
        harness.close()  # nothing happens
    assert [line.message for line in harness.logs] == ["initialize", "finalize"], "of the last life"


@pytest.mark.parametrize("use", [lambda h: h.infer(IN=[1]), lambda h: h.model, lambda h: h.config, lambda h: h.metrics])
def test_a_harness_must_be_open(write, use):
    harness = ModelHarness(write(ECHO), config=configuration())
    with pytest.raises(HarnessError, match="is not open: use it as `with ModelHarness"):
        use(harness)


# --- Versions and directories ---


def test_the_highest_version_runs_unless_another_is_wanted(write):
    for version in (1, 2, 10):
        directory = write(ECHO, version=version)
    (directory / "experiment").mkdir()
    with ModelHarness(directory, config=configuration()) as harness:
        assert harness.version == 10
    with ModelHarness(directory, config=configuration(), version=2) as harness:
        assert harness.model.args["model_version"] == "2"
    with pytest.raises(ModelDirectoryError, match=r"has no version 3; it has \[1, 2, 10\]"):
        ModelHarness(directory, config=configuration(), version=3).open()


def test_directories_that_are_none_of_a_model(write, tmp_path):
    directory = write(ECHO)
    with pytest.raises(ModelDirectoryError, match="there is no directory"):
        ModelHarness(tmp_path / "nothing")
    with pytest.raises(ModelDirectoryError, match="is a file: pass the model's directory"):
        ModelHarness(directory / "1" / "model.py")
    for given, text in (
        (directory / "1", "is a version directory, as it holds a model.py: pass the directory above it"),
        (directory.parent, "is a repository of models: pass one of them, m"),
    ):
        with pytest.raises(ModelDirectoryError, match=text):
            ModelHarness(given, config=configuration()).open()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelDirectoryError, match="has no version directory"):
        ModelHarness(tmp_path / "empty", config=configuration()).open()


def test_a_model_file_of_another_name(write):
    directory = write(ECHO, other=ECHO)
    (directory / "1" / "model.py").unlink()
    with pytest.raises(LoadError, match=r"^Failed to preinitialize Python stub: Python model file not found in '"):
        ModelHarness(directory, config=configuration()).open()
    source = (directory / "1" / "other.py").read_text()
    (directory / "1" / "other.py").write_text(
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + source
    )
    with ModelHarness(directory, config=configuration(default_model_filename="other.py")) as harness:
        assert harness.infer(IN=[2.0])["OUT"].tolist() == [2.0]


def test_a_model_of_a_python_based_backend(write, tmp_path):
    (tmp_path / "backends" / "echoes").mkdir(parents=True)
    directory = write("raise AssertionError('not this file')")
    (tmp_path / "backends" / "echoes" / "model.py").write_text(
        "import helper\nimport triton_python_backend_utils as pb_utils\n" + ECHO
    )
    (tmp_path / "backends" / "echoes" / "helper.py").write_text("HERE = __name__\n")
    config = configuration(backend="echoes")
    with ModelHarness(directory, config=config, backend_directory=tmp_path / "backends") as harness:
        assert type(harness.model).__module__ == "model"
        assert harness.model.directory == str(directory / "1")
    with pytest.raises(HarnessError, match="backend_directory= must name the directory"):
        ModelHarness(directory, config=config).open()


# --- Failures ---


def test_an_import_that_fails_has_the_servers_text(write):
    harness = ModelHarness(write("import helper", helper="def broken(): return nothing\n\nbroken()\n"), config={})
    with pytest.raises(LoadError) as caught:
        harness.open()
    lines = str(caught.value).splitlines()
    directory = harness.directory
    assert lines == [
        "NameError: name 'nothing' is not defined",
        "",
        "At:",
        f"  {directory}/1/helper.py(1): broken",
        f"  {directory}/1/helper.py(3): <module>",
        f"  {directory}/1/model.py(3): <module>",
    ]
    assert isinstance(caught.value.__cause__, NameError)
    assert not harness.is_open


def test_a_file_without_the_class(write):
    with pytest.raises(LoadError, match=r"module '1\.model' has no attribute 'TritonPythonModel'"):
        ModelHarness(write("class Model: pass"), config=configuration()).open()


def test_initialize_that_raises(write):
    code = ECHO.replace('pb_utils.Logger.log_info("initialize")', 'raise RuntimeError("no weights")')
    harness = ModelHarness(write(code), config=configuration())
    with pytest.raises(LoadError, match=r"^RuntimeError: no weights\n\nAt:\n  .*model\.py\(\d+\): initialize\n$"):
        harness.open()
    assert harness.logs == [], "a model that did not get ready is not finalized"


def test_sys_exit_is_a_failure_and_ctrl_c_is_not(write):
    with pytest.raises(LoadError, match=r"^SystemExit: 3"):
        ModelHarness(write("import sys; sys.exit(3)"), config=configuration()).open()
    with pytest.raises(KeyboardInterrupt):
        ModelHarness(write("raise KeyboardInterrupt"), config=configuration()).open()


def test_finalize_that_raises(write):
    code = ECHO.replace('pb_utils.Logger.log_info("finalize")', 'raise RuntimeError("late")')
    harness = ModelHarness(write(code), config=configuration()).open()
    with pytest.raises(FinalizeError, match="finalize raised: RuntimeError: late"):
        harness.close()
    assert harness.logs[-1].message.startswith("Failed to finalize model: RuntimeError: late")
    with ModelHarness(write(code), config=configuration(), strict=False):
        pass  # to a server it is a line in the log
    with pytest.raises(ZeroDivisionError), ModelHarness(write(code), config=configuration()):
        raise ZeroDivisionError  # what went wrong first is what the test shows


# --- Completion ---

COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(4)
        config.as_dict()["parameters"]["ignored"] = {"string_value": "x"}
        return config

    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


def test_a_model_that_describes_itself(write):
    with ModelHarness(write(COMPLETES)) as harness:
        config = harness.config
        assert (config["max_batch_size"], config["input"][0]["dims"], config["parameters"]) == (4, [2], {})
        assert json.loads(harness.model.args["model_config"]) == config
        assert harness.infer(IN=[[1.0, 2.0]])["OUT"].tolist() == [[1.0, 2.0]]


def test_completion_can_be_switched_off(write):
    with ModelHarness(write(COMPLETES), auto_complete=False) as harness:
        assert (harness.config["input"], harness.config["output"]) == ([], [])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return None", "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."),
        ("raise ValueError('no')", "ValueError: no\n\nAt:\n"),
        ("config.set_dynamic_batching(1)", "TypeError: "),
        ("config.exec", "AttributeError"),
    ],
)
def test_completion_that_fails(write, body, text):
    code = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        {body}\n"
    with pytest.raises(HarnessError) as caught:
        ModelHarness(write(code)).open()
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    "call",
    [
        "pb_utils.MetricFamily('f', 'd', pb_utils.MetricFamily.COUNTER)",
        "pb_utils.load_model('other')",
        "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x').exec()",
    ],
)
def test_what_is_not_there_before_initialize(write, call):
    code = f"class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        {call}\n"
    with pytest.raises(
        LoadError, match=r"(is available from 'initialize' until|can be called after 'initialize' has returned)"
    ):
        ModelHarness(write(code)).open()


@pytest.mark.parametrize("method", ["initialize", "finalize"])
@pytest.mark.parametrize("decoupled", [False, True])
def test_models_cannot_be_run_in_initialize_and_finalize(write, method, decoupled):
    arguments = "self, args" if method == "initialize" else "self"
    call = "pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name='x').exec()"
    code = f"class TritonPythonModel:\n    execute = list\n    def {method}({arguments}):\n        {call}\n"
    config = configuration(**(DECOUPLED if decoupled else {}))
    harness = ModelHarness(write(code), config=config, models={"x": dict})
    with pytest.raises(HarnessError, match="BLS is only supported during the 'execute' function"), harness:
        pass


# --- is_ready ---


@pytest.mark.parametrize(
    ("body", "ready", "reason"),
    [
        ("def is_ready(self): return True", True, ""),
        ("def is_ready(self): return False", False, "Model 'm_0' is not ready (user-defined check failed)."),
        ("async def is_ready(self): return True", True, ""),
        ("def is_ready(self): return 1", False, "is_ready() must return a boolean value"),
        ("def is_ready(self): return np.bool_(True)", False, "is_ready() must return a boolean value"),
        ("def is_ready(self): raise ValueError('cold')", False, "ValueError: cold"),
        ("async def is_ready(self): raise ValueError('cold')", False, "ValueError: cold"),
        ("pass", True, ""),
    ],
)
def test_is_ready(opened, body, ready, reason):
    harness = opened(f"class TritonPythonModel:\n    execute = list\n    {body}\n")
    found = harness.is_ready()
    assert bool(found) is ready
    assert found.reason.startswith(reason)
    assert ("not ready" in repr(found)) is not ready
