"""Where a model's code comes from, what it can import, and the process it finds itself in."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

SAMPLES = Path(__file__).parents[2] / "models"

ADD_SUB = """
import json


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        outputs = [pb_utils.get_output_config_by_name(config, name) for name in ("OUTPUT0", "OUTPUT1")]
        self.dtypes = [pb_utils.triton_string_to_numpy(output["data_type"]) for output in outputs]

    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[
                        pb_utils.Tensor("OUTPUT0", (left + right).astype(self.dtypes[0])),
                        pb_utils.Tensor("OUTPUT1", (left - right).astype(self.dtypes[1])),
                    ]
                )
            )
        return responses
"""
ADD_SUB_CONFIG = f"""
name: "add_sub"
backend: "python"
input [ {tensors(INPUT0=("TYPE_FP32", [4]), INPUT1=("TYPE_FP32", [4]))} ]
output [ {tensors(OUTPUT0=("TYPE_FP32", [4]), OUTPUT1=("TYPE_FP32", [4]))} ]
"""
COMPLETED = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -r.inputs()[0].as_numpy())]) for r in requests]
"""
REPORT_CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_INT32", [1]))} ]
output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
"""
REPORT = """
import json
import os
import sys

{imports}


class TritonPythonModel:
    def execute(self, requests):
        document = json.dumps({expression})
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([document], object))]) for _ in requests]
"""
"""A model that answers with a JSON document of what it finds in its process."""

IMPORTS = """
import helper
import in_model_directory

if __name__ != "model":
    from . import helper as relative
    import model as second
"""
MODULES = """{
    "sibling": helper.NAME,
    "relative": relative.NAME,
    "same": helper is relative,
    "model_directory": in_model_directory.NAME,
    "package": [__name__, __package__],
    "second": [second.__name__, second.TritonPythonModel is TritonPythonModel],
}"""
PROCESS = """{
    "path": sys.path,
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "cwd": os.getcwd(),
    "imported_from_cwd": only_here.NAME,
    "environ": dict(os.environ),
    "model_dir": pb_utils.get_model_dir(),
    "dont_write_bytecode": sys.dont_write_bytecode,
}"""
ANNOTATED = """
from typing import List

from triton_python_backend_utils import InferenceRequest, InferenceResponse, Logger, MetricFamily, Tensor, TritonError

NAMES = (
    "Tensor InferenceRequest InferenceResponse Logger TritonError TritonModelException PreferredMemory MetricFamily "
    "TRITONSERVER_MEMORY_GPU TRITONSERVER_MEMORY_CPU load_model unload_model is_model_ready get_model_dir ModelConfig "
    "InferenceResponseSender"
).split()
AT_IMPORT = [name for name in NAMES if not hasattr(pb_utils, name)]
assert AT_IMPORT == ["InferenceResponseSender"], AT_IMPORT  # which upstream has in c_python_backend_utils only
import c_python_backend_utils
assert c_python_backend_utils.Tensor is Tensor and c_python_backend_utils.InferenceResponseSender


class TritonPythonModel:
    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        return [InferenceResponse([Tensor("OUT", np.array([pb_utils.get_model_dir()], object))]) for _ in requests]
"""


def report(imports="", expression="None"):
    return REPORT.format(imports=imports, expression=expression)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("loading") / "models"
    write_model(repository, "add_sub", ADD_SUB, ADD_SUB_CONFIG)
    write_model(repository, "no_config", COMPLETED, None)
    other = 'default_model_filename: "{}"'
    write_model(
        repository,
        "other_name",
        report(expression="[__name__]"),
        other.format("serve_me.py") + REPORT_CONFIG,
        filename="serve_me.py",
    )
    write_model(
        repository,
        "sub_directory",
        report("import helper\nfrom . import helper as relative", "[__name__, helper.NAME, relative.NAME]"),
        other.format("src/model.py") + REPORT_CONFIG,
        filename="src/model.py",
    )
    (repository / "sub_directory/1/src/helper.py").write_text("NAME = 'beside the code'")
    directory = write_model(repository, "imports", report(IMPORTS, MODULES), REPORT_CONFIG)
    (directory / "1/helper.py").write_text("NAME = 'sibling'")
    (directory / "in_model_directory").mkdir()
    (directory / "in_model_directory/__init__.py").write_text("NAME = 'package in the model directory'")
    # A package's own __init__.py runs, and standard modules win over files that have their names.
    directory = write_model(
        repository,
        "shadows",
        report("import numbers\nfrom . import NAME", "[NAME, numbers.__file__, np.__file__]"),
        REPORT_CONFIG,
    )
    (directory / "1/__init__.py").write_text("NAME = 'the package itself'")
    (directory / "1/numbers.py").write_text("raise ImportError('this is not the standard library')")
    (directory / "numpy.py").write_text("raise ImportError('this is not NumPy')")
    everything = REPORT_CONFIG + "version_policy { all {} }"
    for version in (1, 2, 10):
        code = report("import helper", "[__file__, helper.VERSION, __name__]")
        directory = write_model(repository, "versions", code, everything, version=version)
        (directory / str(version) / "helper.py").write_text(f"VERSION = {version}")
    write_model(repository, "process", report("import only_here", PROCESS), REPORT_CONFIG)
    write_model(repository, "annotated", ANNOTATED, REPORT_CONFIG)
    shutil.copytree(SAMPLES / "in_unittest", repository / "in_unittest")
    counter = report("executions = 0", "[os.getpid(), sys.modules['1.model'].executions]").replace(
        "        document", "        sys.modules['1.model'].executions += 1\n        document"
    )
    write_model(repository, "several", counter, REPORT_CONFIG + "instance_group { count: 2 kind: KIND_CPU }")
    return repository


@pytest.fixture(scope="module")
def working_directory(tmp_path_factory):
    """A directory full of traps: a model file and modules that must not be picked up from there."""
    directory = tmp_path_factory.mktemp("cwd")
    (directory / "1").mkdir()
    (directory / "1" / "model.py").write_text("raise ImportError('this is not the model')")
    for name in ("model", "helper", "triton_python_backend_utils"):
        (directory / f"{name}.py").write_text(f"raise ImportError('{name}.py of the working directory')")
    (directory / "only_here.py").write_text("NAME = 'found last'")
    (directory / "data.txt").write_text("read from initialize")
    return directory


@pytest.fixture(scope="module")
def server(repository, working_directory, tmp_path_factory):
    python_path = tmp_path_factory.mktemp("python_path")
    for name in ("helper", "triton_python_backend_utils"):
        (python_path / f"{name}.py").write_text("raise ImportError('PYTHONPATH reached the model')")
    environment = {
        **os.environ,
        "MODEL_SETTING": "für das Modell",
        "PYTHONPATH": str(python_path),
        "PYTHONHASHSEED": "7",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": "libm.so.6",
        "LD_LIBRARY_PATH": "/somewhere/lib",
        "LC_ALL": "C.UTF-8",
    }
    with serving(repository, env=environment, cwd=working_directory) as server:
        yield server


def reported(server, model, version=""):
    path = f"{model}/versions/{version}" if version else model
    (text,) = infer(server, path, {"IN": np.zeros(1, np.int32)})["OUT"]
    return json.loads(text)


@pytest.mark.spec("pb-L01")
def test_add_sub(server):
    left, right = np.array([1, 2, 3, 4], np.float32), np.array([10, 20, 30, 40.5], np.float32)
    answer = infer(server, "add_sub", {"INPUT0": left, "INPUT1": right})
    assert answer["OUTPUT0"].tolist() == (left + right).tolist()
    assert answer["OUTPUT1"].tolist() == (left - right).tolist()
    assert (answer.document["model_name"], answer.document["model_version"]) == ("add_sub", "1")


@pytest.mark.spec("pb-L02")
def test_no_config_at_all(server, repository):
    assert not (repository / "no_config/config.pbtxt").exists()
    config = server.get("/v2/models/no_config/config").json
    assert (config["name"], config["backend"], config["default_model_filename"]) == ("no_config", "python", "model.py")
    assert config["max_batch_size"] == 4
    for kind, name in (("input", "IN"), ("output", "OUT")):
        (tensor,) = config[kind]
        assert (tensor["name"], tensor["data_type"], tensor["dims"]) == (name, "TYPE_INT32", [-1])
    metadata = server.get("/v2/models/no_config").json
    assert metadata["inputs"] == [{"name": "IN", "datatype": "INT32", "shape": [-1, -1]}]
    assert infer(server, "no_config", {"IN": np.array([[1, 2]], np.int32)})["OUT"].tolist() == [[-1, -2]]


@pytest.mark.spec("pb-L03")
def test_other_file_names(server):
    assert reported(server, "other_name") == ["1.serve_me"]
    assert reported(server, "sub_directory") == ["src.model", "beside the code", "beside the code"]


@pytest.mark.spec("pb-L06")
def test_imports(server):
    assert reported(server, "imports") == {
        "sibling": "sibling",
        "relative": "sibling",
        "same": False,
        "model_directory": "package in the model directory",
        "package": ["1.model", "1"],
        "second": ["model", False],
    }
    assert reported(server, "in_unittest") == {"ran": 2, "failures": 0, "errors": 0}


@pytest.mark.spec("pb-L06", "pb-L07")
def test_models_do_not_shadow_what_is_installed(server):
    package, numbers, numpy = reported(server, "shadows")
    assert package == "the package itself"
    assert (numbers, numpy) == (__import__("numbers").__file__, np.__file__)


@pytest.mark.spec("pb-L07")
def test_search_path(server, repository, working_directory):
    found = reported(server, "process")
    path = found["path"]
    assert path[-3:] == [str(repository / "process/1"), str(repository / "process"), str(working_directory)]
    site_packages = str(Path(np.__file__).parents[1])
    assert path.index(site_packages) < path.index(str(repository / "process/1"))
    assert "" not in path
    assert path.count(str(working_directory)) == 1
    assert found["imported_from_cwd"] == "found last"
    # `1/model.py`, `model.py`, `helper.py` and `triton_python_backend_utils.py` of the working directory would have
    # raised.
    assert found["file"] == str(repository / "process/1/model.py")


@pytest.mark.spec("pb-L08")
def test_versions_side_by_side(server, repository):
    for version in ("1", "2", "10"):
        file = str(repository / "versions" / version / "model.py")
        assert reported(server, "versions", version) == [file, int(version), f"{version}.model"]
    assert reported(server, "versions")[1] == 10
    assert server.get("/v2/models/versions").json["versions"] == ["1", "2", "10"]


@pytest.mark.spec("pb-L09")
def test_environment_and_working_directory(server, repository, working_directory):
    found = reported(server, "process")
    environment = found["environ"]
    assert environment["MODEL_SETTING"] == "für das Modell"
    assert environment["PATH"] == os.environ["PATH"]
    assert environment["LD_LIBRARY_PATH"] == "/somewhere/lib"  # the host's own Python runs this model
    own = {"PYTHONUSERBASE"}  # HOME is the model's own; the operator's packages stay importable
    assert [name for name in environment if name.startswith("PYTHON") or name in ("LD_PRELOAD", "LD_AUDIT")] in (
        [],
        [*own],
    )
    assert found["cwd"] == str(working_directory)
    assert (found["argv"], found["name"]) == ([""], "1.model")
    assert found["model_dir"] == str(repository / "process/1")


LOCALE = report(
    "import locale",
    "[locale.setlocale(locale.LC_CTYPE), locale.getlocale(), sys.stdout.encoding, sys.getfilesystemencoding()]",
)


@pytest.mark.spec("pb-L09")
@pytest.mark.parametrize(("lc_all", "name", "encoding"), [("INVALID", "C", None), ("C.UTF-8", "C.UTF-8", "UTF-8")])
def test_locale_is_inherited(tmp_path, lc_all, name, encoding):
    write_model(tmp_path, "locale", LOCALE, REPORT_CONFIG)
    with serving(tmp_path, env={**os.environ, "LC_ALL": lc_all}) as server:
        ctype, found, stdout, files = reported(server, "locale")
    assert (ctype, found[1]) == (name, encoding)
    if encoding is None:
        assert found == [None, None]
    assert (stdout.lower(), files.lower()) == ("utf-8", "utf-8")


@pytest.mark.spec("pb-L10")
def test_instances_are_processes_of_their_own(server):
    seen = {}
    while len(seen) < 2 or max(seen.values()) < 3:
        pid, executions = reported(server, "several")
        seen[pid] = seen.get(pid, 0) + 1
        assert executions == seen[pid], "a module's globals are shared between instances"
    assert len(seen) == 2
    assert set(seen) < set(server.stub_pids())


@pytest.mark.spec("pb-L11")
def test_names_are_complete_at_import_time(server, repository):
    (directory,) = infer(server, "annotated", {"IN": np.zeros(1, np.int32)})["OUT"]
    assert directory.decode() == str(repository / "annotated/1")
