"""Models are unit-tested where nothing but numpy, or numpy and pytest, is installed: the sources of SDK, stub and wire
do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.floor import environments

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
CONFIG = {
    "input": [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in ("INPUT0", "INPUT1")],
    "output": [{"name": name, "data_type": "TYPE_FP32", "dims": [4]} for name in ("OUTPUT0", "OUTPUT1")],
}
"""
UNITTEST = (
    CONFIG
    + """
import importlib.util
import sys
import unittest

import numpy as np
import triton_python_backend_utils as pb_utils
from pybackend_testing import InputError, ModelHarness


class TestModel(unittest.TestCase):
    def test_sum_and_difference(self):
        left, right = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
        with ModelHarness("add_sub", config=CONFIG) as harness:
            result = harness.infer(INPUT0=left, INPUT1=right)
            np.testing.assert_array_equal(result["OUTPUT0"], left + right)
            np.testing.assert_array_equal(result["OUTPUT1"], left - right)
            with self.assertRaisesRegex(InputError, "expects 'FP32': pass array.astype"):
                harness.infer(INPUT0=left.astype(np.float64), INPUT1=right)
        self.assertEqual(harness.logs[-1].message, "add_sub: no more sums today")

    def test_responses_can_be_made_alone(self):
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))])
        self.assertEqual(response.output_tensors()[0].shape(), [1])

    def test_there_is_nothing_else(self):
        for name in ("pybackend", "msgpack", "google", "pytest"):
            self.assertIsNone(importlib.util.find_spec(name))


unittest.main()
"""
)
PYTEST = (
    CONFIG
    + """
import numpy as np
import pytest


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_sum(model_harness, value):
    harness = model_harness("add_sub", config=CONFIG)
    left = np.full(4, value, np.float32)
    assert harness.infer(INPUT0=left, INPUT1=left)["OUTPUT0"].tolist() == [2 * value] * 4
"""
)


@pytest.fixture(scope="module", params=environments.rows(protocols=(False,)), ids=str)
def row(request: pytest.FixtureRequest) -> environments.Row:
    return request.param


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An author's directory: a model, and nothing installed."""
    shutil.copytree(ROOT / "examples" / "add_sub" / "model_repository" / "add_sub", tmp_path / "add_sub")
    return tmp_path


def _run(python: str, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join((str(ROOT / "stub"), str(ROOT / "sdk"))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [python, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def _python(make, *arguments) -> str:
    try:
        return make(*arguments)
    except environments.Unavailable as reason:
        pytest.skip(f"this was not run: {reason}")


@pytest.mark.timeout(300)
def test_with_numpy_alone(row, project):
    python = _python(environments.python_of, row)
    (project / "test_model.py").write_text(UNITTEST)
    done = _run(python, project, "test_model.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 3 tests" in done.stderr


@pytest.mark.spec("pb-U01")
@pytest.mark.timeout(300)
def test_with_pytest(project):
    """On this interpreter only: pip resolves what pytest needs for the interpreter that it runs on."""
    row = environments.Row(sys.version_info.minor, numpy_major=2, msgpack=False)
    python = _python(environments.python_with, "pytest", row)
    (project / "test_model.py").write_text(PYTEST)
    done = _run(python, project, "-m", "pytest", "-q", "-p", "pybackend_testing.pytest_plugin", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_on_the_command_line(row, project):
    python = _python(environments.python_of, row)
    arguments = (
        "-m",
        "pybackend_testing",
        "add_sub",
        "--input",
        "INPUT0=[1, 2, 3, 4]",
        "--input",
        "INPUT1=[1, 1, 1, 1]",
    )
    done = _run(python, project, *arguments)
    assert done.returncode == 2
    assert "error: failed to read " in done.stderr
    assert "the package 'pybackend', which reads config.pbtxt, is not installed here" in done.stderr
    (project / "config.json").write_text(
        subprocess.run(
            [python, "-c", CONFIG + "import json; print(json.dumps(CONFIG))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    done = _run(python, project, *arguments, "--config", "config.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "OUTPUT0: float32 [4] [2., 3., 4., 5.]" in done.stdout
