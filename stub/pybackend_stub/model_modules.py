"""Keeps the modules of models in one process apart, as if each model had its own process.

Every model file is ``1.model`` or the like, and many have a ``helper.py``. So the names beside a model's file belong to
that model: its import statements find its own modules under them, whatever another model, or a test, has under the same
names. Import statements elsewhere are left alone, but find the model's modules in ``sys.modules`` if nothing else has
the name.
"""

import builtins
import importlib
import os
import sys
import sysconfig
import threading
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Set

from pybackend_sdk.model_loader import import_model

_lock = threading.RLock()
"""Held while ``sys.modules`` shows the modules of one model."""

_OURS = (
    "triton_python_backend_utils",
    "c_python_backend_utils",
    "pybackend_sdk",
    "pybackend_stub",
    "pybackend_testing",
    "pybackend_wire",
)

_open: "List[ModelModules]" = []
_by_globals: "Dict[int, ModelModules]" = {}
"""The owner of running code, by the identity of the namespace that it runs in."""


class ModelModules:
    """The modules that one model has imported from its own directories."""

    def __init__(self, model_file: str, of_backend: bool) -> None:
        self._model_file = model_file
        self._of_backend = of_backend
        directory = os.path.dirname(model_file)
        self.directories = [directory] if of_backend else [directory, os.path.dirname(directory)]
        self._prefixes = tuple(directory + os.sep for directory in self.directories)
        package = os.path.splitext(os.path.basename(model_file))[0] if of_backend else os.path.basename(directory)
        with _lock:  # a model that is being imported has its directories in sys.path, as if its modules were installed
            own = frozenset({package, *_names_in(self.directories)})
        self.names: FrozenSet[str] = own
        """Top-level names that belong to the model."""
        self._modules: Dict[str, ModuleType] = {}
        self._displaced: Dict[str, ModuleType] = {}
        self._depth = 0  # of the import statements that see its modules; 0 while none does
        self._modules_before: Set[str] = set()
        self._path_before: List[str] = []
        self._path_added: List[str] = []

    def load(self) -> type:
        """Import the model file and return its class, see :func:`~pybackend_sdk.model_loader.import_model`."""
        importlib.invalidate_caches()
        with _lock:
            self._modules_before = set(sys.modules)
            self._path_before = list(sys.path)
            _open.append(self)
            _hook_imports()
            with self.shown():
                return import_model(self._model_file, of_backend=self._of_backend)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let import statements in this thread see the model's modules; others wait."""
        with _lock:
            if not self._depth:
                self._show()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._hide()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Let the modules of other models be seen meanwhile; for the model's file alone, which imports a library."""
        self._depth = 0
        self._hide()
        held = _lock._release_save()  # type: ignore[attr-defined]  # as threading.Condition does, however often it is held
        try:
            yield
        finally:
            _lock._acquire_restore(held)  # type: ignore[attr-defined]
            self._show()
            self._depth = 1

    @property
    def can_hide(self) -> bool:
        """Whether this thread runs the model's file for the first time.

        Not within other modules of the model: for each of them, Python holds a lock that bears its name alone.
        """
        return self._depth == 1 and bool(_lock._is_owned())  # type: ignore[attr-defined]

    def _show(self) -> None:
        self._displaced = self._take(sys.modules)
        self._finder: Any = _Finder(self)
        sys.modules.update(self._modules)
        self._wrote_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # as in a server
        sys.meta_path.insert(0, self._finder)
        self._known_path = list(sys.path)

    def _hide(self) -> None:
        sys.meta_path.remove(self._finder)
        sys.dont_write_bytecode = self._wrote_no_bytecode
        known = {id(entry) for entry in self._known_path}
        self._path_added += [entry for entry in sys.path if id(entry) not in known]
        displaced, self._displaced = self._displaced, {}
        for module in self._modules.values():
            _by_globals.pop(id(vars(module)), None)
        self._modules = self._take(sys.modules)
        _by_globals.update((id(vars(module)), self) for module in self._modules.values())
        taken = {_top(name) for name in displaced}
        sys.modules.update({name: it for name, it in self._modules.items() if _top(name) not in taken})
        sys.modules.update(displaced)

    def _take(self, modules: Dict[str, ModuleType]) -> Dict[str, ModuleType]:
        """Remove and return the modules under the model's own names."""
        return {
            name: modules.pop(name)
            for name, module in list(modules.items())
            if _top(name) in self.names and isinstance(module, ModuleType)
        }

    def has(self, filename: str) -> bool:
        """Whether a file lies in the directories of the model's code."""
        return filename.startswith(self._prefixes)

    def close(self) -> None:
        """Forget the modules, and restore ``sys.path`` and ``sys.modules`` as if they had never been imported."""
        with _lock:
            if self not in _open:
                return
            _open.remove(self)
            for name, module in list(sys.modules.items()):
                if self._modules.get(name) is module or (name not in self._modules_before and self._is_stray(module)):
                    del sys.modules[name]
            for module in self._modules.values():
                _by_globals.pop(id(vars(module)), None)
            sys.path[:] = [entry for entry in sys.path if not self._has_added(entry)]
            for directory in self.directories:
                sys.path_importer_cache.pop(directory, None)
            _unhook_imports()

    def _has_added(self, entry: str) -> bool:
        """Whether the model added this entry of ``sys.path``. A test may have the same directory there too."""
        if any(entry is added for added in self._path_added):
            return True
        return entry not in self._path_before and self.has(os.path.join(entry, "module.py"))

    def _is_stray(self, module: Any) -> bool:
        """Whether a module of the model was brought in by something other than the model's import statements."""
        filename = getattr(module, "__file__", None)
        return isinstance(filename, str) and _top(module.__name__) in self.names and self.has(filename)


def renew_lock() -> None:
    """Have a free lock in a forked process: the thread that held it may not be there."""
    global _lock
    _lock = threading.RLock()


def caller_modules() -> Optional[ModelModules]:
    """Return the calling model, by the innermost frame of a model's code; None if there is none."""
    innermost: Optional[FrameType] = sys._getframe(1)
    frame = innermost
    while frame is not None:
        owner = _by_globals.get(id(frame.f_globals))
        if owner is not None:
            return owner
        frame = frame.f_back
    frame = innermost
    while frame is not None:  # code that a test, or importlib, loaded from the model's directory
        for owner in reversed(_open):
            if owner.has(frame.f_code.co_filename):
                return owner
        frame = frame.f_back
    return None


class _Finder:
    """Finds a model's own modules before a test's modules of the same name."""

    def __init__(self, owner: ModelModules) -> None:
        self._owner = owner

    def find_spec(
        self, fullname: str, path: "Optional[Sequence[str]]" = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if path is None and fullname in self._owner.names:
            return PathFinder.find_spec(fullname, self._owner.directories)
        return None


def _top(name: str) -> str:
    return name.partition(".")[0]


def _names_in(directories: "Sequence[str]") -> Iterator[str]:
    """Return the names of modules and packages in these directories, without installed ones, which take precedence."""
    for directory in directories:
        for entry in os.listdir(directory):
            name, dot, _ = entry.partition(".")
            importable = name.isidentifier() and (dot or os.path.isdir(os.path.join(directory, entry)))
            if (
                importable
                and not name.startswith("__")
                and PathFinder.find_spec(name, [directory]) is not None
                and not _is_installed(name)
            ):
                yield name


def _is_installed(name: str) -> bool:
    if name in _OURS:
        return True  # authors keep copies of triton_python_backend_utils in their projects
    finders: Any = (BuiltinImporter, FrozenImporter)
    if any(finder.find_spec(name) is not None for finder in finders):
        return True
    return PathFinder.find_spec(name, _installed_directories()) is not None


def _installed_directories() -> List[str]:
    """The part of a server's ``sys.path`` before the model's directories: standard library, installed packages."""
    added = {id(entry) for modules in _open for entry in modules._path_added}
    path = [entry for entry in sys.path if id(entry) not in added]
    standard_library = sysconfig.get_path("stdlib")
    begin = path.index(standard_library) if standard_library in path else 0
    return path[begin:]  # entries before it come from PYTHONPATH, pytest or the test itself


# --- Import statements of models ------------------------------------------------------------------------------------

_plain_import: Any = builtins.__import__


def _import(
    name: str,
    globals: "Optional[Dict[str, Any]]" = None,  # noqa: A002  the built-in function's own names
    locals: "Optional[Dict[str, Any]]" = None,  # noqa: A002
    fromlist: "Sequence[str]" = (),
    level: int = 0,
) -> Any:
    if globals is _PROBE:
        raise _HookReached
    owner = _by_globals.get(id(globals))
    if owner is None and _open:
        owner = _loading(globals)
    if owner is None or (level == 0 and _top(name) not in owner.names):
        if owner is not None and owner.can_hide and name not in sys.modules:
            with owner.hidden():
                return _plain_import(name, globals, locals, fromlist, level)
        return _plain_import(name, globals, locals, fromlist, level)
    with owner.shown():
        return _plain_import(name, globals, locals, fromlist, level)


def _loading(namespace: "Optional[Dict[str, Any]]") -> "Optional[ModelModules]":
    """Return the model whose file is being imported and has this namespace."""
    filename = None if namespace is None else namespace.get("__file__")
    if type(filename) is str:
        for owner in _open:
            if owner.can_hide and owner.has(filename):
                return owner
    return None


def _hook_imports() -> None:
    global _plain_import
    if not _is_hooked():
        _plain_import = builtins.__import__
        builtins.__import__ = _import  # type: ignore[assignment]


def _unhook_imports() -> None:
    if (
        not _open and builtins.__import__ is _import
    ):  # otherwise a test has put its own hook before it, which still calls it
        builtins.__import__ = _plain_import


def _is_hooked() -> bool:
    """Whether import statements reach this hook, directly or through a hook that a test has put before it."""
    try:
        builtins.__import__("sys", _PROBE)
    except _HookReached:
        return True
    return False


class _HookReached(Exception):
    pass


_PROBE: Dict[str, Any] = {}
