"""A model's class: refused if it cannot execute, warned of if a method looks misspelt; the texts are the server's."""

import subprocess
import sys

import pytest

from pybackend_testing import LoadError, ModelHarness
from tests.unit.testing.conftest import configuration

EXECUTE = "    def execute(self, requests):\n        return []\n"


@pytest.mark.parametrize(
    "code",
    [
        "class TritonPythonModel:\n    def exceute(self, requests): pass",
        "class TritonPythonModel: pass",
        "class TritonPythonModel: execute = 3",
        f"class TritonPythonModle:\n{EXECUTE}",
        f"class Classifier:\n{EXECUTE}",
        "from collections import OrderedDict",
        "TritonPythonModel = None",
        "TritonPythonModel = 'm'",
    ],
)
def test_a_class_that_cannot_execute_is_refused(write, code, snapshot):
    with pytest.raises(LoadError) as refused:
        ModelHarness(write(code), config=configuration()).open()
    assert str(refused.value) == snapshot


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
