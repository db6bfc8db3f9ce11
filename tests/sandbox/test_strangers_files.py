"""Files of frameworks, and environments, hold code of strangers: no command runs it outside of the sandbox."""

import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, OTHER_UID, parameters, public_directory, public_python
from tests.support.repositories import write_model
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

DEADLINE_S = 150

NOTE = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
said = json.dumps({"uid": os.getuid(), "seccomp": int(status["Seccomp"])})
try:
    open(os.path.join(EVIDENCE, str(os.getpid())), "w").write(said)
except OSError:
    pass
"""
"""What a stranger's code does: it writes down with which rights it runs."""


class Hostile:
    """Runs code when it is unpickled, and becomes an honest estimator."""

    def __init__(self, code, honest):
        self._expression = f"(exec({code!r}), __import__('pickle').loads({pickle.dumps(honest)!r}))[1]"

    def __reduce__(self):
        return eval, (self._expression,)


@pytest.fixture
def place():
    """A directory that other users can reach, with one for evidence that all can write to."""
    directory = public_directory()
    try:
        (directory / "evidence").mkdir()
        (directory / "evidence").chmod(0o1777)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def hostile_pickle(place: Path) -> Path:
    linear = pytest.importorskip("sklearn.linear_model")
    code = NOTE.replace("EVIDENCE", repr(str(place / "evidence")))
    path = place / "churn.pkl"
    path.write_bytes(pickle.dumps(Hostile(code, linear.LinearRegression().fit(np.eye(3), [1, 2, 3]))))
    return path


def onnx_file(place: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    floats = onnx.TensorProto.FLOAT
    tensors = [onnx.helper.make_tensor_value_info(name, floats, ["rows", 4]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "graph", tensors[:1], tensors[1:])
    path = place / "relu.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def hostile_environment(environment, place):
    """An environment with ONNX Runtime whose first code is a stranger's."""
    runtime = Path(pytest.importorskip("onnxruntime").__file__).parent
    directory, packages = environment
    shutil.copytree(runtime, packages / "onnxruntime", ignore=shutil.ignore_patterns("transformers", "tools"))
    (packages / "first.py").write_text(NOTE.replace("EVIDENCE", repr(str(place / "evidence"))))
    (packages / "first.pth").write_text("import first\n")
    return directory


HARNESS = """
import sys
from pybackend_testing import ModelHarness
with ModelHarness(sys.argv[1]) as harness:
    assert harness.infer(x=[1.0])["y"].tolist() == [2.0]
"""

DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each.inputs()[0].as_numpy() * 2)]) for each in requests]
"""


def ran(place: Path, who: str, *arguments: object, statuses: tuple[int, ...] = (0,)) -> list[dict[str, int]]:
    """Runs a command as root or as another user; returns what the stranger's code wrote down."""
    if who == "root" and not IS_ROOT:
        pytest.skip("only root can start it")
    changed = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []} if IS_ROOT and who == "user" else {}
    home = place / "home"
    home.mkdir()
    if changed:
        os.chown(home, OTHER_UID, OTHER_UID)
    done = subprocess.run(
        [public_python(place), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=home,
        env={**os.environ, "HOME": str(home)},
        **changed,
    )
    assert done.returncode in statuses, done.stdout + done.stderr
    return [json.loads(path.read_text()) for path in (place / "evidence").iterdir()]


def assert_confined(notes: list[dict[str, int]], who: str, least: int) -> None:
    assert len(notes) >= least
    assert {note["seccomp"] for note in notes} == {2}
    uids = {note["uid"] for note in notes}
    assert 0 not in uids if who == "root" else uids == {OTHER_UID if IS_ROOT else os.getuid()}


@pytest.mark.parametrize("who", ["root", *thorough("user")])
def test_an_import_runs_a_pickle_only_in_the_sandbox(place, who):
    may_write = f"--parameter=SANDBOX_WRITE={place / 'evidence'}"
    notes = ran(place, who, "-m", "pybackend", "import", hostile_pickle(place), "--trust-pickle", "--verify", may_write)
    assert_confined(notes, who, least=2)


@pytest.mark.thorough
def test_a_floor_holds_for_the_framework_that_verifies(place):
    flags = ["--trust-pickle", "--verify", "--", "--sandbox-floor=strict"]
    assert ran(place, "root", "-m", "pybackend", "import", hostile_pickle(place), *flags) == []


@pytest.mark.parametrize("who", ["root", *thorough("user")])
@pytest.mark.thorough
def test_the_test_harness_starts_an_environment_only_in_the_sandbox(place, hostile_environment, who):
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: 1 } output { name: "y" data_type: TYPE_FP32 dims: 1 }'
    named = parameters(EXECUTION_ENV_PATH=str(hostile_environment), SANDBOX_WRITE=str(place / "evidence"))
    model = write_model(place / "models", "double", DOUBLE, f'backend: "python" {tensors} {named}')
    (place / "harness.py").write_text(HARNESS)
    assert_confined(ran(place, who, place / "harness.py", model), who, least=1)


def test_a_program_runs_in_a_model_s_sandbox_on_request(place, hostile_environment):
    run = ["-m", "pybackend", "env", "run", f"--model={place}", "--config={}", hostile_environment, "--"]
    assert_confined(ran(place, "user", *run, "python", "-c", ""), "user", least=1)


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["root", *thorough("user")])
def test_an_import_starts_an_environment_only_in_the_sandbox(place, hostile_environment, who):
    flags = [f"--environment={hostile_environment}", "--verify", f"--parameter=SANDBOX_WRITE={place / 'evidence'}"]
    assert_confined(ran(place, who, "-m", "pybackend", "import", onnx_file(place), *flags), who, least=2)


@pytest.fixture
def repository(place):
    """A repository with the hostile pickle, which its author says to trust."""
    rights = parameters(PICKLE="trusted", SANDBOX_WRITE=str(place / "evidence"))
    (place / "models" / "churn" / "1").mkdir(parents=True)
    hostile_pickle(place).rename(place / "models" / "churn" / "1" / "model.pkl")
    (place / "models" / "churn" / "config.pbtxt").write_text(rights)
    return place / "models"


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_a_command_that_examines_models_runs_none_of_their_files(place, repository, command):
    assert ran(place, "root", "-m", "pybackend", command, repository, statuses=(0, 1)) == []


@pytest.mark.parametrize("who", ["root", *thorough("user")])
@pytest.mark.thorough
def test_a_command_that_serves_a_model_does_so_in_the_sandbox(place, repository, who):
    asked = ["infer", "--repository", repository, "churn", "--input", "input=[1, 2, 3]"]
    assert_confined(ran(place, who, "-m", "pybackend", *asked), who, least=1)
