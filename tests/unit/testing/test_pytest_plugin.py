"""The fixture ``model_harness``, in a test run of its own."""

import os
import subprocess
import sys

import pytest

import pybackend_sdk
import pybackend_wire
from tests.unit.testing.conftest import configuration

PASS = """
import os

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

    def finalize(self):
        pb_utils.Logger.log_warn("finalized")
        if os.path.exists("fails"):
            raise ValueError("late")
"""


@pytest.fixture
def run(write, tmp_path):
    """Run a test file with the plugin; gives pytest's exit status and what it printed."""
    write(PASS)

    def run(source, *arguments):
        path = tmp_path / "test_model.py"
        path.write_text(f"CONFIG = {configuration()!r}\n" + source)
        folders = [os.path.dirname(os.path.dirname(package.__file__)) for package in (pybackend_sdk, pybackend_wire)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-p", "pybackend_testing.pytest_plugin", "-c", os.devnull,
                "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-W", "error", "-q", *arguments, str(path),
            ],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_models_are_opened_and_closed_with_the_test(run):
    status, out = run(
        """
def test_it(model_harness):
    first = model_harness("models/m", config=CONFIG)
    second = model_harness("models/m", config=CONFIG, parameters={"k": "v"})
    assert first.infer(IN=[1.0])["OUT"].tolist() == [1.0]
    assert second.config["parameters"] == {"k": {"string_value": "v"}}
    test_it.opened = first, second

def test_then():
    assert not any(harness.is_open for harness in test_it.opened)
    assert [line.message for line in test_it.opened[0].logs] == ["finalized"]
"""
    )
    assert (status, "2 passed" in out) == (0, True), out


def test_a_finalize_that_raises_fails_the_test(run, tmp_path):
    (tmp_path / "fails").write_text("yes")
    status, out = run(
        """
def test_it(model_harness):
    model_harness("models/m", config=CONFIG)
    model_harness("models/m", config=CONFIG)
"""
    )
    assert status == 1
    assert "1 passed, 1 error" in out
    assert "FinalizeError: finalize raised: ValueError: late" in out


def test_what_failed_is_shown_with_the_models_code_and_log(run):
    status, out = run(
        """
def test_it(model_harness):
    harness = model_harness("models/m", config=CONFIG)
    harness.model.execute = broken
    harness.infer(IN=[1.0])["OUT"]

def broken(requests):
    import triton_python_backend_utils as pb_utils
    pb_utils.Logger.log_error("here it comes")
    raise ValueError("xyz")
"""
    )
    assert status == 1
    assert '>       raise ValueError("xyz")' in out or "raise ValueError" in out
    assert "InferenceFailed: Failed to process the request(s) for model 'm_0', message: ValueError: xyz" in out
    assert "here it comes" in out


def test_the_fixture_is_documented(run):
    _, out = run("", "--fixtures")
    assert "model_harness" in out
    assert "Opens models for a test." in out
