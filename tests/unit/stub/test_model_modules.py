"""The modules of models that share a process."""

import builtins
import sys
import threading

from pybackend_stub import model_modules
from pybackend_stub.group import Group
from pybackend_stub.model_modules import ModelModules

MODEL = """
import builtins

{during}


class TritonPythonModel:
    def execute(self, requests):
        pass
"""

_WAIT_S = 0.3
"""Time for a thread that should wait; one that does not needs a millisecond."""


def write(directory, during=""):
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(MODEL.format(during=during))
    (directory / "1" / "helper.py").write_text("")
    return str(directory / "1" / "model.py")


def test_a_model_that_is_being_imported_takes_no_names_from_another(tmp_path, monkeypatch):
    """Its directories are in ``sys.path`` meanwhile, as if its helper.py was an installed package."""
    first = ModelModules(write(tmp_path / "first", "builtins.during_import()"), of_backend=False)
    second_file, found = write(tmp_path / "second"), []
    other = threading.Thread(target=lambda: found.append(ModelModules(second_file, of_backend=False)))

    def during_import():
        other.start()
        other.join(_WAIT_S)

    monkeypatch.setattr(builtins, "during_import", during_import, raising=False)
    try:
        first.load()
        other.join()
        assert "helper" in found[0].names
    finally:
        first.close()


def test_a_model_that_imports_a_library_holds_up_no_other(tmp_path, monkeypatch):
    """Libraries may take long, or for ever."""
    started, finish = threading.Event(), threading.Event()
    monkeypatch.setattr(builtins, "of_library", (started.set, finish.wait), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slow_library.py").write_text(
        "import builtins\nstarted, wait = builtins.of_library\nstarted()\nwait()\n"
    )
    slow = ModelModules(
        write(tmp_path / "slow", "import slow_library\nimport helper\nFOUND = helper.__file__"), of_backend=False
    )
    quick = ModelModules(write(tmp_path / "quick", "import helper\nFOUND = helper.__file__"), of_backend=False)
    loaded = {}

    def load(modules):
        loaded[modules] = modules.load()

    threads = [threading.Thread(target=load, args=(modules,), daemon=True) for modules in (slow, quick)]
    try:
        threads[0].start()
        assert started.wait(30)
        threads[1].start()
        threads[1].join(30)
        assert list(loaded) == [quick]
        finish.set()
        threads[0].join(30)
        for modules, name in ((slow, "slow"), (quick, "quick")):
            found = loaded[modules].execute.__globals__["FOUND"]
            assert found == str(tmp_path / name / "1" / "helper.py")
        assert sys.path.count(str(tmp_path / "slow" / "1")) == 1
    finally:
        finish.set()
        for modules in (slow, quick):
            modules.close()
        sys.modules.pop("slow_library", None)
    assert not any(entry.startswith(str(tmp_path / name)) for entry in sys.path for name in ("slow", "quick"))


def test_a_process_that_was_forked_while_another_model_was_imported_can_import(monkeypatch):
    monkeypatch.setattr(model_modules, "_lock", threading.RLock())
    group = Group.__new__(Group)
    group._members = []
    held, done = threading.Event(), threading.Event()

    def hold():
        with model_modules._lock:
            held.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    group._on_fork()  # as in the fork, which has no other thread
    try:
        assert model_modules._lock.acquire(timeout=5)
    finally:
        done.set()
        other.join()
