"""A model's class: refused if it cannot execute, warned of if a method looks misspelt; the texts are the server's."""

import subprocess
import sys

import pytest

from pybackend_testing import LoadError, ModelHarness
from tests.unit.testing.conftest import configuration

EXECUTE = "    def execute(self, requests):\n        return []\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "class TritonPythonModel:\n    def exceute(self, requests): pass",
            r"^Python model .*/m/1/model\.py does not implement `execute` method\. TritonPythonModel has no method execute; did "
            r"you mean 'exceute'\?$",
        ),
        (
            "class TritonPythonModel: pass",
            r"does not implement `execute` method\. TritonPythonModel has no method execute$",
        ),
        ("class TritonPythonModel: execute = 3", r"TritonPythonModel\.execute cannot be called: it is of type 'int'$"),
        (
            f"class TritonPythonModle:\n{EXECUTE}",
            r"must define class TritonPythonModel; did you mean 'TritonPythonModle'\?$",
        ),
        (f"class Classifier:\n{EXECUTE}", r"must define class TritonPythonModel; did you mean 'Classifier'\?$"),
        ("from collections import OrderedDict", r"must define class TritonPythonModel$"),
        ("TritonPythonModel = None", r"must define class TritonPythonModel$"),
        ("TritonPythonModel = 'm'", r"^TritonPythonModel in .*model\.py must be a class, but it is of type 'str'$"),
    ],
)
def test_a_class_that_cannot_execute_is_refused(write, code, text):
    with pytest.raises(LoadError, match=text):
        ModelHarness(write(code), config=configuration()).open()


@pytest.mark.parametrize(
    ("misspelt", "name"),
    [
        ("initialise", "initialize"),
        ("intialize", "initialize"),
        ("Finalize", "finalize"),
        ("auto_complete_configs", "auto_complete_config"),
        ("isready", "is_ready"),
    ],
)
def test_a_misspelt_method_is_warned_of(opened, misspelt, name):
    harness = opened(f"class TritonPythonModel:\n    def {misspelt}(self): pass\n{EXECUTE}")
    assert [(line.level, line.message) for line in harness.logs] == [
        (
            "WARNING",
            f"TritonPythonModel has no method {name}; did you mean '{misspelt}'? The server does not call '{misspelt}'",
        )
    ]


@pytest.mark.parametrize("other", ["_initialize", "init", "initialized = True\n    def x", "initialize"])
def test_other_methods_are_not(opened, other):
    harness = opened(
        f"class TritonPythonModel:\n    def {other}(self, *args): pass\n{EXECUTE}".replace(
            "def initialized", "initialized"
        )
    )
    assert harness.logs == []


@pytest.mark.parametrize(
    "code",
    [
        "class Base:\n    def execute(self, requests): return []\nclass TritonPythonModel(Base): pass",
        "class Model:\n    def execute(self, requests): return []\ndef TritonPythonModel(): return Model()",
        "class TritonPythonModel:\n    def __init__(self): self.execute = lambda requests: []",
        "class TritonPythonModel:\n    def initialize(self, args): self.execute = lambda requests: []",
        "class TritonPythonModel:\n    def __getattr__(self, name):\n        if name == 'execute': return list\n"
        "        raise AttributeError(name)",
    ],
)
def test_whatever_gives_the_object_an_execute_will_do(write, code):
    with ModelHarness(write(code), config=configuration()) as harness:
        assert harness.is_ready()


def test_looking_for_misspelt_methods_costs_a_model_without_any_no_memory():
    code = f"""
import sys
from pybackend_sdk.model_loader import warn_of_misspelt_methods
class TritonPythonModel:
    def initialize(self, args): pass
{EXECUTE}
warn_of_misspelt_methods(TritonPythonModel)
print("difflib" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
