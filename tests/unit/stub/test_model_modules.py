"""The modules of models that share a process."""

from __future__ import annotations

import builtins
import threading

from pybackend_stub import model_modules
from pybackend_stub.group import Group
from pybackend_stub.model_modules import ModelModules

MODEL = """
import builtins

{during}


class TritonPythonModel:
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
