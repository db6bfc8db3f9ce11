"""The models that a model under test can call, load and unload; the harness's counterpart of a model repository."""

import os
import shutil
import tempfile
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

from pybackend_sdk.request import InferenceRequest
from pybackend_stub.coroutines import CoroutineRunner
from pybackend_stub.host_calls import HostRefusal
from pybackend_testing.errors import HarnessError, LoadError, PendingFailures
from pybackend_testing.fakes import FakeModel, Replies
from pybackend_testing.metrics import MetricRegistry
from pybackend_wire.errors import ErrorCode

RunningModel = Any
"""A ``ModelHarness``, which imports this module."""

Target = Union[str, "os.PathLike[str]", RunningModel, "Callable[..., Any]"]
"""A model's directory, a harness, or a function: see :mod:`pybackend_testing.fakes`."""

MakeModel = Callable[[Any, str], Optional[RunningModel]]
"""Makes a model, not yet loaded, from a directory and a name; returns None for other targets."""


class _Entry:
    """One model: a function or a harness. The table opens and closes those that it owns."""

    def __init__(self, fake: Optional[FakeModel], harness: Optional[RunningModel], *, owned: bool) -> None:
        self.fake = fake
        self.harness = harness
        self.owned = owned
        self.ready = True

    @property
    def model(self) -> Union[FakeModel, RunningModel]:
        model = self.harness if self.fake is None else self.fake
        assert model is not None
        return model


class ModelTable:
    """All models that can call each other, with the state they share: metrics, and failures of the test's own code."""

    def __init__(self) -> None:
        self.metrics = MetricRegistry()
        self.failures = PendingFailures()
        self._entries: Dict[str, _Entry] = {}
        self._make_model: MakeModel = lambda _directory, _name: None
        self._lock = threading.Lock()
        self._runner: Optional[CoroutineRunner] = None
        self._directories: List[str] = []
        self._ensembles: List[str] = []
        """The ensembles that are loading their models, the outermost first."""

    # Life

    def open(self, main: RunningModel, models: Mapping[str, Target], make_model: MakeModel) -> None:
        """Add the model under test, under its own name, and the other models, and load the others."""
        self._make_model = make_model
        self._entries[main.name] = _Entry(None, main, owned=False)
        for name, target in models.items():
            self._entries[name] = self._entry(name, target)
        for name, entry in list(self._entries.items()):
            self._load(name, entry)

    def has(self, name: str) -> bool:
        """Whether there is a model of this name."""
        return name in self._entries

    def ensure(self, name: str, target: Target, *, by: str) -> "Union[FakeModel, RunningModel]":
        """Return the model of a name, loaded; ``target`` is it if there is none yet.

        The ensemble ``by`` consists of it.
        """
        self._ensembles.append(by)
        try:
            if name in self._ensembles:
                circle = [*self._ensembles[self._ensembles.index(name) :], name]
                raise LoadError(f"circular dependency between ensembles: {' -> '.join(circle)}")
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = self._entry(name, target)
            self._load(name, entry)
            return entry.model
        finally:
            self._ensembles.pop()

    @staticmethod
    def _load(name: str, entry: _Entry) -> None:
        if entry.owned and entry.harness is not None and not entry.harness.is_open:
            try:
                entry.harness.open()
            except HarnessError as error:
                raise LoadError(f"models={{'{name}': ...}}: {error}") from error

    def _entry(self, name: str, target: Any) -> _Entry:
        model = self._make_model(target, name)
        if model is not None:
            return _Entry(None, model, owned=not model.is_open)
        if callable(target):
            return _Entry(FakeModel(name, target, self._run_coroutine, self.failures), None, owned=False)
        raise HarnessError(
            f"models={{'{name}': ...}} must be a function, a model's directory or a ModelHarness, not "
            f"{type(target).__name__}"
        )

    def close(self) -> None:
        """Close the harnesses that this table opened, the last first; then raise the first failure, if any."""
        failures: List[BaseException] = []
        for entry in reversed(list(self._entries.values())):
            if entry.owned and entry.harness is not None:
                try:
                    entry.harness.close()
                except HarnessError as error:
                    failures.append(error)
        self._entries.clear()
        if self._runner is not None:
            self._runner.close(1.0)
            self._runner = None
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
        self._directories.clear()
        if failures:
            raise failures[0]

    def running(self) -> Dict[str, RunningModel]:
        """The models that run in harnesses, by the names that models call them by."""
        return {name: entry.harness for name, entry in self._entries.items() if entry.harness is not None}

    def _run_coroutine(self, coroutine: Any) -> Any:
        with self._lock:
            if self._runner is None:
                self._runner = CoroutineRunner()
        return self._runner.run(0, coroutine)

    # Calls

    def call(self, request: InferenceRequest, *, decoupled: bool) -> Replies:
        target = request._target
        assert target is not None
        name, version = target.model_name, target.model_version
        entry = self._entries.get(name)
        if entry is None:
            reason = f"Request for unknown model: '{name}' is not found{self._advice()}"
            raise HostRefusal(f"{_not_ready(name)} {reason}", ErrorCode.INTERNAL)
        if entry.harness is not None and version >= 0 and version != entry.harness.version:
            reason = f"Request for unknown model: '{name}' version {version} is not found"
            raise HostRefusal(f"{_not_ready(name)} {reason}", ErrorCode.INTERNAL)
        if entry.ready and entry.model.decoupled and not decoupled:
            raise HostRefusal(
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
                "decoupled models.'",
                ErrorCode.INTERNAL,
            )
        if not entry.ready or (entry.harness is not None and not entry.harness.is_ready()):
            raise HostRefusal(_not_ready(name), ErrorCode.UNAVAILABLE)
        return entry.model.call(request)

    def _advice(self) -> str:
        return f". Known: {', '.join(sorted(self._entries))}; ModelHarness(models={{...}}) adds others"

    # Model control

    def load(self, name: str, config: str, files: "Mapping[str, bytes]") -> None:
        """Load a model, or reload it with another configuration."""
        failed = f"failed to load '{name}', failed to poll from model repository: "
        entry = self._entries.get(name)
        if files:
            if not config:
                raise _refused(f"{failed}files are given without a configuration: give 'config' too")
            self._load_files(name, config, files)
            return
        if entry is None:
            raise _refused(f"{failed}there is no such model{self._advice()}")
        if entry.harness is not None and (config or not entry.harness.is_open):
            if not entry.owned:
                raise _refused(f"the test itself has opened model '{name}': it cannot be changed here")
            self._reopen(entry.harness, config)
        entry.ready = True

    def _load_files(self, name: str, config: str, files: "Mapping[str, bytes]") -> None:
        root = tempfile.mkdtemp(prefix="pybackend-testing-")
        self._directories.append(root)
        directory = os.path.join(root, name)
        for key, content in files.items():
            path = os.path.normpath(os.path.join(directory, key[len("file:") :].lstrip("/")))
            if not key.startswith("file:") or not path.startswith(directory + os.sep):
                raise _refused(f"'{key}' is no path of a file: write 'file:<version>/<name>'")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        previous = self._entries.get(name)
        harness = self._make_model(directory, name)
        assert harness is not None
        self._reopen(harness, config)
        if previous is not None and previous.owned and previous.harness is not None:
            previous.harness.close()
        self._entries[name] = _Entry(None, harness, owned=True)

    def _reopen(self, harness: RunningModel, config: str) -> None:
        try:
            harness.close()
            harness.open(config or None)
        except HarnessError as error:
            raise _refused(f"load failed for model '{harness.name}': {error}\n") from error

    def unload(self, name: str) -> None:
        """Unload a model; unknown models are ignored."""
        entry = self._entries.get(name)
        if entry is None:
            return
        entry.ready = False
        if entry.owned and entry.harness is not None:
            entry.harness.close()

    def is_ready(self, name: str, version: str) -> bool:
        if version and not version.lstrip("-").isdigit():
            raise _refused(
                f"failed to get model version from specified version string '{version}' (it is no number), version should "
                "be an integral value > 0",
            )
        entry = self._entries.get(name)
        if entry is None:
            return False
        if not entry.ready or entry.harness is None:
            return entry.ready
        if version and int(version) != entry.harness.version:
            return False
        return bool(entry.harness.is_ready())


def _not_ready(name: str) -> str:
    return f"Failed for execute the inference request. Model '{name}' is not ready."


def _refused(reason: str) -> HostRefusal:
    return HostRefusal(reason, ErrorCode.INVALID_ARG)
