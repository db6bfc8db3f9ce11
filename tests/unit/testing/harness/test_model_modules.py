"""Several models in one process see their own files only, and a test sees none of them afterwards."""

import builtins
import json
import os
import pickle
import subprocess
import sys
import threading
from types import ModuleType

import pytest

from pybackend_testing import ModelHarness
from tests.unit.testing.conftest import configuration

IMPORTS = """
import helper

if __name__ == "1.model":
    from . import helper as relative
    import model as itself

class TritonPythonModel:
    def initialize(self, args):
        self.seen = [helper.WHO, relative.WHO, __name__]
        self.modules = (helper, relative, itself)

    def execute(self, requests):
        import helper as late
        from . import helper as late_relative
        import later
        from .later import WHO
        import package.part
        self.seen = [late.WHO, late_relative.WHO, later.WHO, WHO, package.part.WHO, late.nested()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""
HELPER = """
WHO = {who!r}

def nested():
    import later
    return later.WHO
"""


@pytest.fixture
def model(write, opened):
    """A model that imports what lies beside it, and knows by what it finds whose it is."""

    def model(who):
        directory = write(IMPORTS, who, helper=HELPER.format(who=who), later=f"WHO = {who!r}")
        (directory / "package").mkdir()
        (directory / "package" / "__init__.py").write_text("")
        (directory / "package" / "part.py").write_text(f"WHO = {who!r}")
        harness = ModelHarness(directory, config=configuration())
        harness.open()
        harnesses.append(harness)
        return harness

    harnesses = []
    yield model
    for harness in harnesses:
        harness.close()


def test_imports_find_what_lies_beside_the_model(model):
    harness = model("a")
    assert harness.model.seen == ["a", "a", "1.model"]
    helper, relative, itself = harness.model.modules
    assert helper is not relative, "they are two modules, as in a server"
    assert (helper.__name__, relative.__name__, itself.__name__) == ("helper", "1.helper", "model")
    harness.infer(IN=[1])
    assert harness.model.seen == ["a"] * 6


def test_models_that_are_open_together_do_not_mix(model):
    first, second = model("a"), model("b")
    for harness, who in ((first, "a"), (second, "b"), (first, "a")):
        harness.infer(IN=[1]).raise_for_error()
        assert harness.model.seen == [who] * 6


def test_the_same_directory_twice_has_modules_of_its_own_each(write):
    code = "count = 0\nclass TritonPythonModel:\n    execute = list\n    def count(self):\n        global count\n        count += 1\n        return count\n"
    directory = write(code)
    harnesses = [ModelHarness(directory, config=configuration()).open() for _ in range(2)]
    first, second = (harness.model for harness in harnesses)
    assert [first.count(), second.count(), first.count()] == [1, 1, 2]
    for harness in harnesses:
        harness.close()


def test_models_in_threads_do_not_mix(model):
    harnesses = {who: model(who) for who in "abcd"}
    failures = []

    def ask(who):
        for _ in range(20):
            harnesses[who].infer(IN=[1]).raise_for_error()
            if harnesses[who].model.seen != [who] * 6:
                failures.append(harnesses[who].model.seen)

    threads = [threading.Thread(target=ask, args=(who,)) for who in harnesses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_tests_module_of_the_same_name_is_left_alone(model, monkeypatch):
    own = ModuleType("helper")
    monkeypatch.setitem(sys.modules, "helper", own)
    harness = model("a")
    assert harness.model.seen[:2] == ["a", "a"]
    assert sys.modules["helper"] is own
    harness.infer(IN=[1])
    assert harness.model.seen == ["a"] * 6
    harness.close()
    assert sys.modules["helper"] is own


def test_a_tests_module_that_is_not_imported_yet_does_not_shadow_the_models(model, tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text("WHO = 'the test'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert model("a").model.seen[:2] == ["a", "a"]


def test_installed_packages_win_over_the_models_files(write):
    directory = write("import json, numpy\nclass TritonPythonModel: json, execute = json, list", json="", numpy="")
    with ModelHarness(directory, config=configuration()) as harness:
        assert harness.model.json is json


def test_a_copy_of_pb_utils_beside_the_model_is_not_what_it_gets(write):
    directory = write(
        "class TritonPythonModel: tensor, execute = pb_utils.Tensor, list", triton_python_backend_utils=""
    )
    with ModelHarness(directory, config=configuration()) as harness:
        assert harness.model.tensor.__name__ == "Tensor"


def test_modules_can_be_seen_while_the_model_is_open(model):
    """By pickle, dataclasses and whoever else looks a module up by its name."""
    harness = model("a")
    cls = type(harness.model)
    assert sys.modules["1.model"].TritonPythonModel is cls
    assert pickle.loads(pickle.dumps(cls)) is cls
    import helper

    assert helper.WHO == "a"


def test_paths_that_a_model_adds_go_with_it(write, tmp_path):
    (tmp_path / "models" / "m" / "lib").mkdir(parents=True)
    (tmp_path / "models" / "m" / "lib" / "addition.py").write_text("WHO = 'lib'")
    directory = write(
        """
        import os, sys
        sys.path.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "lib"))
        import addition
        class TritonPythonModel: who, execute = addition.WHO, list
        """
    )
    with ModelHarness(directory, config=configuration()) as harness:
        assert harness.model.who == "lib"
        assert sys.path[-3:] == [str(directory), os.getcwd(), str(directory / "lib")]
        assert sys.path[-4] == str(directory / "1")


def test_nothing_is_written_beside_the_model(model, tmp_path):
    model("a").infer(IN=[1])
    assert [path for path in tmp_path.rglob("*") if path.name == "__pycache__"] == []


def test_a_model_that_is_changed_is_read_again(write):
    for who in ("a", "b"):
        directory = write(f"class TritonPythonModel: who, execute = {who!r}, list")
        with ModelHarness(directory, config=configuration()) as harness:
            assert harness.model.who == who


def test_import_statements_can_be_replaced_for_a_test(model, monkeypatch):
    """As tests do that pretend that a package is missing."""
    harness = model("a")
    plain = builtins.__import__

    def without_later(name, *arguments, **named):
        if name == "later":
            raise ImportError("pretended")
        return plain(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_later)
    assert "ImportError: pretended" in harness.infer(IN=[1]).error.message()
    assert model("b").model.seen[:2] == ["b", "b"], "models that are opened meanwhile work as well"
    monkeypatch.undo()
    assert harness.infer(IN=[1]).error is None


def test_a_replacement_may_outlive_the_harness(model, monkeypatch):
    plain = builtins.__import__
    harness = model("a")
    asked = []

    def listening(name, *arguments, **named):
        asked.append(name)
        return hooked(name, *arguments, **named)

    hooked = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", listening)
    for _ in range(2):
        harness.close()
        harness.open()
        harness.infer(IN=[1])
        assert harness.model.seen == ["a"] * 6
    harness.close()
    assert "later" in asked
    import json as anything

    assert anything is json
    monkeypatch.undo()
    assert builtins.__import__ is hooked, "which hands everything on by now"
    builtins.__import__ = plain


def test_functions_can_be_replaced_for_a_test(opened, monkeypatch):
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            values = np.array([float(open("weights").read())], np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)])]
    """
    harness = opened(code)
    import io

    monkeypatch.setattr(builtins, "open", lambda *_: io.StringIO("1.5"))
    assert harness.infer(IN=[1])["OUT"].tolist() == [1.5]
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules["1.model"], "float", lambda _: 2.5, raising=False)
    monkeypatch.setattr(sys.modules["1.model"], "open", lambda *_: io.StringIO(), raising=False)
    assert harness.infer(IN=[1])["OUT"].tolist() == [2.5]


def test_code_at_module_level_may_use_the_log(write):
    directory = write("pb_utils.Logger.log_info('imported')\nclass TritonPythonModel: execute = list")
    with ModelHarness(directory, config=configuration()) as harness:
        assert [line.message for line in harness.logs] == ["imported"]


def test_a_failed_import_leaves_nothing(write):
    directory = write("import helper\nraise ValueError", helper="WHO = 1")
    with pytest.raises(Exception, match="ValueError"):
        ModelHarness(directory, config=configuration()).open()


def test_importing_the_package_is_cheap():
    """pytest imports it in every run of whoever has it installed."""
    code = (
        "import sys\nbefore = set(sys.modules)\nimport pybackend_testing.pytest_plugin\n"
        "print(*(name for name in set(sys.modules) - before if name.startswith(('numpy', 'asyncio', 'pybackend'))))"
    )
    pytest_first = "import pytest\n"
    done = subprocess.run(
        [sys.executable, "-c", pytest_first + code], capture_output=True, text=True, check=True, env=_environment()
    )
    assert set(done.stdout.split()) == {"pybackend_testing", "pybackend_testing.pytest_plugin"}


def _environment():
    import pybackend_sdk
    import pybackend_wire

    folders = [os.path.dirname(os.path.dirname(package.__file__)) for package in (pybackend_sdk, pybackend_wire)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
