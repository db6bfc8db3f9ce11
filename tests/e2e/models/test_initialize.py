"""``initialize``: what it is told, how long it may take, and what follows when it fails."""

import json
import threading
import time

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.machine import without_gpu
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

CONFIG = f"""
backend: "python"
max_batch_size: 4
input [
  {tensors(IN=("TYPE_INT32", [1]))},
  {{ name: "SHAPED" data_type: TYPE_FP32 dims: [ 4 ] reshape {{ shape: [ 2, 2 ] }} optional: true }}
]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
"""
TELL = """
import json


class TritonPythonModel:
    def initialize(self, args):
        assert type(args) is dict
        assert all(type(key) is str and type(value) is str for key, value in args.items())
        self.args = args

    def execute(self, requests):
        document = json.dumps(self.args)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[document]], object))]) for _ in requests]
"""
PARAMETERS = """
parameters { key: "threshold" value { string_value: "0.75" } }
parameters { key: "text" value { string_value: "ein \\"Wort\\" für alle\\n" } }
"""
GATED = """
import os
import time


class TritonPythonModel:
    def initialize(self, args):
        # The test opens the gate; this model waits for as long as that takes.
        while not os.path.exists(os.path.join(args["model_repository"], "gate")):
            time.sleep(0.01)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([["late"]], object))]) for _ in requests]
"""
EXECUTE_ALONE = """
class TritonPythonModel:
    execute = list
"""
KINDS = {
    # Configuration -> (name, kind, device id) of each instance.
    "unnamed": (
        "instance_group { kind: KIND_CPU count: 2 }",
        [("unnamed_0_0", "CPU", "0"), ("unnamed_0_1", "CPU", "0")],
    ),
    "named": (
        'instance_group [ { name: "left" kind: KIND_CPU }, { name: "right" kind: KIND_MODEL } ]',
        [("left_0", "CPU", "0"), ("right_0", "MODEL", "0")],
    ),
    "model": ("instance_group { kind: KIND_MODEL }", [("model_0_0", "MODEL", "0")]),
    "auto": ("instance_group { kind: KIND_AUTO }", [("auto_0_0", "CPU", "0")]),
    "none": ("", [("none_0", "CPU", "0")]),
    "alone": ("instance_group { kind: KIND_CPU }", [("alone_0_0", "CPU", "0")]),
}
BAD = {
    "raises": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        self.missing_name()\n        lorem_ipsum",
        "Internal: AttributeError: 'TritonPythonModel' object has no attribute 'missing_name'\n\nAt:\n"
        "  {directory}/1/model.py(5): initialize\n",
    ),
    "name_error": (
        "def prepare():\n    lorem_ipsum\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        prepare()",
        "Internal: NameError: name 'lorem_ipsum' is not defined\n\nAt:\n"
        "  {directory}/1/model.py(4): prepare\n  {directory}/1/model.py(9): initialize\n",
    ),
    "constructor": (
        "class TritonPythonModel:\n    def __init__(self):\n        raise pb_utils.TritonModelException('no')",
        "Internal: TritonModelException: no\n\nAt:\n  {directory}/1/model.py(5): __init__\n",
    ),
    "needs_arguments": (
        "class TritonPythonModel:\n    def __init__(self, args):\n        pass",
        "Internal: TypeError: TritonPythonModel.__init__() missing 1 required positional argument: 'args'",
    ),
    "quits": (
        "import sys\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        sys.exit('no licence')",
        "Internal: SystemExit: no licence\n\nAt:\n",
    ),
    "init_exit": (
        "import os\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        os._exit(9)",
        "Internal: Stub process 'init_exit_0_0' is not healthy. The process exited with status 9.",
    ),
    "init_crash": (
        "import os\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n        os.kill(os.getpid(), 11)",
        "Internal: Stub process 'init_crash_0_0' is not healthy. The process was killed by signal 11 (SIGSEGV).",
    ),
    "second_of_two": (
        "import os\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n"
        "        if args['model_instance_name'].endswith('_1'):\n            os._exit(4)\n    execute = list",
        "Internal: Stub process 'second_of_two_0_1' is not healthy. The process exited with status 4.",
    ),
    "import_error": (
        "import package_that_nobody_has",
        "Internal: ModuleNotFoundError: No module named 'package_that_nobody_has'\n\nAt:\n  {directory}/1/model.py(3): <module>\n",
    ),
    "syntax_error": ("def execute(:\n    pass", "Internal: SyntaxError: invalid syntax (model.py, line 3)"),
    "not_utf8": (None, "Internal: SyntaxError: "),
    "quits_at_import": (
        "import sys\nsys.exit(0)",
        "Internal: SystemExit: 0\n\nAt:\n  {directory}/1/model.py(4): <module>\n",
    ),
    "no_class": (
        "class Model:\n    pass",
        "Internal: module '1.model' has no attribute 'TritonPythonModel': {directory}/1/model.py must define class "
        "TritonPythonModel",
    ),
    "bls": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        pb_utils.InferenceRequest(\n"
        "            model_name='x', inputs=[], requested_output_names=[]).exec()",
        "Internal: TritonModelException: BLS is only supported during the 'execute' function. Models can be called after "
        "'initialize' has returned",
    ),
    "surrogates": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('\\udc80 \\ud800 ä')",
        "Internal: ValueError: \\udc80 \\ud800 ä\n\nAt:\n",
    ),
}
"""Code after the two imports of every model, and why the model cannot be loaded."""


@served()
def server(repository):
    for name, (group, _) in KINDS.items():
        write_model(repository, name, TELL, CONFIG + group + PARAMETERS)
    write_model(repository, "no_methods", EXECUTE_ALONE, CONFIG)


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """A server on which every model of the table has failed to load."""
    repository = tmp_path_factory.mktemp("bad")
    for name, (code, _) in BAD.items():
        group = f"instance_group {{ count: {2 if name == 'second_of_two' else 1} kind: KIND_CPU }}"
        directory = write_model(repository, name, code or "", CONFIG + group)
        if code is None:
            (directory / "1/model.py").write_bytes(b"text = '\xff'\n")
    write_model(repository, "no_file", None, CONFIG)
    write_model(repository, "on_a_gpu", TELL, CONFIG + "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    write_model(repository, "bad_extension", "", CONFIG + 'default_model_filename: "model.txt"', filename="model.txt")
    for value in ("yes", "no", "maybe"):
        parameter = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{value}" }} }}'
        write_model(repository, f"force_{value}", TELL, CONFIG + parameter + "instance_group { kind: KIND_CPU }")
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        began_s = time.monotonic()
        server.wait_for("models are ready in")
        server.load_s = time.monotonic() - began_s
        server.repository = repository
        yield server


def reason(server, model):
    """Why a model failed to load, as the log has it."""
    line = json.loads(server.wait_for(rf"] (\"failed to load '{model}'[^\n]*\")\n")[1])
    return line.removeprefix(f"failed to load '{model}'").removeprefix(" version 1").removeprefix(": ")


def told(server, model):
    """What a model's ``initialize`` was given."""
    (text,) = infer(server, model, {"IN": np.zeros((1, 1), np.int32)})["OUT"].ravel()
    return json.loads(text)


@pytest.mark.spec("pb-I01")
def test_arguments(server):
    arguments = told(server, "alone")
    config = arguments.pop("model_config")
    assert arguments == {
        "model_instance_kind": "CPU",
        "model_instance_name": "alone_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(server.repository / "alone"),
        "model_version": "1",
        "model_name": "alone",
    }
    assert json.loads(config)["name"] == "alone"


@pytest.mark.spec("pb-I02")
def test_shape_of_the_configuration(server):
    config = json.loads(told(server, "unnamed")["model_config"])
    always = (
        "name platform backend runtime max_batch_size input output batch_input batch_output instance_group "
        "default_model_filename cc_model_filenames metric_tags parameters model_warmup model_transaction_policy"
    )
    assert set(config) == {*always.split(), "version_policy", "optimization"}
    assert (config["backend"], config["default_model_filename"], config["max_batch_size"]) == ("python", "model.py", 4)
    assert (config["platform"], config["runtime"], config["cc_model_filenames"]) == ("", "", {})
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    plain, shaped = config["input"]
    assert plain == {
        "name": "IN",
        "data_type": "TYPE_INT32",
        "format": "FORMAT_NONE",
        "dims": [1],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert set(shaped) == {*plain, "reshape"}
    assert shaped["reshape"] == {"shape": [2, 2]}
    (output,) = config["output"]
    assert output == {
        "name": "OUT",
        "data_type": "TYPE_STRING",
        "dims": [1],
        "label_filename": "",
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }
    (group,) = config["instance_group"]
    assert group == {
        "name": "unnamed_0",
        "kind": "KIND_CPU",
        "count": 2,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


@pytest.mark.spec("pb-I03")
def test_parameters(server):
    parameters = json.loads(told(server, "none")["model_config"])["parameters"]
    assert parameters == {
        "threshold": {"string_value": "0.75"},
        "text": {"string_value": 'ein "Wort" für alle\n'},
    }


@pytest.mark.spec("pb-I07")
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=[without_gpu] if name in {"auto", "none"} else []) for name in KINDS],
)
def test_kinds_and_names(server, model):
    expected = KINDS[model][1]
    seen = set()
    deadline_s = time.monotonic() + 60
    while len(seen) < len(expected):
        arguments = told(server, model)
        seen.add(
            (
                arguments["model_instance_name"],
                arguments["model_instance_kind"],
                arguments["model_instance_device_id"],
            )
        )
        assert time.monotonic() < deadline_s
    assert seen == set(expected)


def test_class_without_methods_loads(server):
    assert server.get("/v2/models/no_methods/ready").status == 200


@pytest.mark.spec("pb-I05")
def test_initialize_may_take_its_time(tmp_path):
    """No limit of any kind is in force: a few seconds are longer than everything else that the server waits for.

    Meanwhile the server answers, is not ready, and the model appears as soon as it is done.
    """
    directory = write_model(tmp_path, "gated", GATED, CONFIG)
    opener = threading.Timer(4, (directory / "gate").touch)
    with serving(tmp_path, flags=("--exit-timeout-secs=1",), ready=False) as server:
        server.wait_for("loading: gated:1")
        began_s = time.monotonic()
        opener.start()
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 400
        server.wait_ready()
        opener.join()
        assert time.monotonic() - began_s > 3.9
        assert infer(server, "gated", {"IN": np.zeros((1, 1), np.int32)})["OUT"].tolist() == [[b"late"]]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=pytest.mark.spec("pb-I06") if name.startswith("init_") else pytest.mark.spec("pb-I04"))
        for name in BAD
    ],
)
def test_failure_fails_the_load(bad, model):
    directory = bad.repository / model
    found = reason(bad, model)
    assert found.startswith(BAD[model][1].format(directory=directory))
    assert "pybackend_stub" not in found
    assert "pybackend_sdk" not in found
    reply = bad.infer(model, {"inputs": []})
    assert reply.status == 404
    assert reply.error.startswith(f"Request for unknown model: '{model}' has no available versions. It failed: ")


@pytest.mark.spec("pb-L05")
def test_missing_file(bad):
    file = bad.repository / "no_file/1/model.py"
    expected = f"Internal: Failed to preinitialize Python stub: Python model file not found in '{file}'"
    assert reason(bad, "no_file").startswith(expected)
    assert bad.load_s < 50


@pytest.mark.spec("pb-L04")
def test_bad_extension(bad):
    expected = "Model name must end with '.py'. Model name is \"model.txt\"."
    assert expected in reason(bad, "bad_extension")


@without_gpu
def test_gpu_is_refused_where_there_is_none(bad):
    assert "KIND_GPU" in reason(bad, "on_a_gpu")


@pytest.mark.spec("pb-V07")
def test_force_cpu_only_input_tensors(bad):
    expected = "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"
    assert reason(bad, "force_maybe").startswith(expected)
    for value in ("yes", "no"):
        assert json.loads(told(bad, f"force_{value}")["model_config"])["parameters"] == {
            "FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": value}
        }


def test_others_serve_although_many_failed(bad):
    assert sorted(bad.stub_pids()) == sorted(set(bad.stub_pids()))
    assert len(bad.stub_pids()) == 2  # those of force_yes and force_no; nothing of a failed load stays
