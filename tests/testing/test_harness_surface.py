"""The names that tests of models rely on. A change here is a change for every test suite: it needs a changelog line."""

import inspect

import pytest

import pybackend_testing as testing
from pybackend_testing import HarnessError, ModelHarness

NAMES = [
    "ConfigError",
    "EnsembleHarness",
    "FinalizeError",
    "HarnessError",
    "InferenceFailed",
    "InputError",
    "LoadError",
    "LogLine",
    "MetricRegistry",
    "ModelDirectoryError",
    "ModelHarness",
    "NoResponse",
    "OutputError",
    "OutputWarning",
    "Readiness",
    "Request",
    "Result",
    "Stream",
]
REQUEST = [
    "inputs",
    "outputs",
    "request_id",
    "correlation_id",
    "parameters",
    "timeout_us",
    "priority",
    "flags",
    "wait_s",
    "named_inputs",
]


def test_these_names_and_no_others():
    assert testing.__all__ == NAMES == dir(testing)
    with pytest.raises(AttributeError, match="has no attribute 'Harness'"):
        testing.Harness  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there_and_documented(name):
    assert inspect.getdoc(getattr(testing, name))
    assert getattr(testing, name).__module__.startswith("pybackend_testing.")


def test_errors_have_one_base():
    errors = [getattr(testing, name) for name in NAMES if name.endswith(("Error", "Failed", "NoResponse"))]
    assert all(issubclass(error, HarnessError) for error in errors)


@pytest.mark.parametrize("method", ["infer", "stream"])
def test_parameters_of_requests(method):
    parameters = inspect.signature(getattr(ModelHarness, method)).parameters
    assert list(parameters)[1:] == REQUEST
    assert parameters["inputs"].kind is inspect.Parameter.POSITIONAL_ONLY


def test_parameters_of_the_harness():
    assert list(inspect.signature(ModelHarness).parameters) == [
        "model_dir",
        "version",
        "config",
        "overrides",
        "parameters",
        "auto_complete",
        "instance_kind",
        "device_id",
        "models",
        "strict",
        "wait_s",
        "backend_directory",
        "environment",
        "debug_port",
    ]
    public = {name for name, _ in inspect.getmembers(ModelHarness) if not name.startswith("_")}
    assert public == {
        "call", "close", "config", "decoupled", "execute", "infer", "instance_name", "is_open", "is_ready", "logs", "metrics",
        "model", "models", "open", "stream", "version",
    }  # fmt: skip
