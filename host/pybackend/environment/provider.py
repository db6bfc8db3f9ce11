"""Prepares the environment that a configuration names: a directory, an archive, or a list of packages."""

import logging
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pybackend.environment.cache import EnvironmentCache, HeldEnvironment
from pybackend.environment.environment import Environment, activation_variables
from pybackend.environment.hooks import NOTHING, HookEffect, ShellRun, effect_of, hooks_of, shell_command
from pybackend.environment.interpreter import Interpreter, check_usable, find_interpreter
from pybackend.environment.specification import Packer, SpecificationCache, is_specification
from pybackend.environment.unpacking import Cancelled
from pybackend.errors import ModelEnvironmentError, PybackendError
from pybackend_wire.confinement import LIBRARY_PATH

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05

_OF_THE_LOADER = ("LD_LIBRARY_PATH", LIBRARY_PATH)
"""Variables for the environment's Python. A system shell must load the system's libraries instead."""


RunShell = Callable[[Environment, Path, Sequence[str], threading.Event], tuple[ShellRun, str]]
"""Runs a shell that may read the scripts' directory and the environment; also returns the shell's private directory.

The event is set when the result is no longer needed. It raises PybackendError (the shell cannot be confined), OSError
(it cannot be started) or Cancelled.
"""


class HookEffects:
    """Determines and stores effects: of unpacked environments in their cache, of directories in memory."""

    def __init__(self, cache: EnvironmentCache, run_shell: RunShell) -> None:
        self._cache = cache
        self._run_shell = run_shell
        self._known: dict[Path, tuple[Hashable, HookEffect]] = {}
        self._locks: dict[Path, threading.Lock] = {}

    def applied(
        self,
        environment: Environment,
        hooks: Sequence[Path],
        held: HeldEnvironment | None,
        cancelled: threading.Event,
    ) -> Environment:
        """An environment with the variables that its hooks set. Blocking: not for the event loop.

        A faulty hook does not prevent the use of the environment: a warning names the hook.
        """
        assert environment.prefix is not None
        lock = self._locks.setdefault(environment.prefix, threading.Lock())
        while not lock.acquire(timeout=_LOOK_EVERY_S):
            if cancelled.is_set():
                raise Cancelled
        try:
            effect = self._effect(environment, hooks, held, cancelled)
        finally:
            lock.release()
        return replace(environment, variables=effect.applied(environment.variables))

    def _effect(
        self,
        environment: Environment,
        hooks: Sequence[Path],
        held: HeldEnvironment | None,
        cancelled: threading.Event,
    ) -> HookEffect:
        assert environment.prefix is not None
        stamp = (environment.identity, *map(_stamp, hooks))
        known = self._known.get(environment.prefix)
        if known is not None and known[0] == stamp:
            return known[1]
        effect = None if held is None else self._cache.records.hook_effect(held.key)
        if effect is None:
            effect = self._found_out(environment, environment.prefix, hooks, cancelled)
            # A failure may be due to a busy machine, so it is not stored: the next server tries again.
            if held is not None and not effect.complaints:
                self._cache.records.keep_hook_effect(held.key, effect)
        self._known[environment.prefix] = stamp, effect
        return effect

    def _found_out(
        self, environment: Environment, prefix: Path, hooks: Sequence[Path], cancelled: threading.Event
    ) -> HookEffect:
        variables = {name: value for name, value in environment.variables.items() if name not in _OF_THE_LOADER}
        variables["CONDA_PREFIX"] = str(prefix)
        activated = replace(environment, variables=variables)
        try:
            run, scratch = self._run_shell(activated, hooks[0].parent, shell_command(prefix, hooks), cancelled)
        except (OSError, ValueError, PybackendError) as error:
            log.warning("The activation hooks in %s were not run: %s", hooks[0].parent, error)
            return HookEffect(complaints=(str(error),))
        effect = effect_of(run, hooks, prefix, scratch)
        for complaint in effect.complaints:
            log.warning("Activation hook %s", complaint)
        if effect != NOTHING:
            log.info("Activation hooks of %s set %s.", prefix, ", ".join(effect.names) or "nothing")
        return effect


def _stamp(hook: Path) -> Hashable:
    with suppress(OSError):
        status = hook.stat()
        return hook.name, status.st_mtime_ns, status.st_size, status.st_ino
    return hook.name


MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
"""Placeholder for the model's directory in a configuration."""


def environment_path(text: str, model_directory: Path) -> Path:
    """The path in a configuration, placeholders replaced; relative ones start at the server's working directory."""
    return Path(text.replace(MODEL_DIRECTORY, str(model_directory))).absolute()


@dataclass(frozen=True, eq=False)
class ModelEnvironment:
    """An environment in use by a model; its path is the one in the configuration."""

    environment: Environment
    interpreter: Interpreter
    path: Path
    held: HeldEnvironment | None

    def facts(self) -> dict[str, str]:
        interpreter = self.interpreter
        return {
            "path": str(self.path),
            "python": interpreter.version,
            "numpy": interpreter.numpy or "",
            "interpreter": str(self.environment.python),
            "prefix": str(interpreter.prefix),
        }

    def keep_over_exec(self) -> None:
        """Keep the environment in use until a program that replaces this process ends."""
        if self.held is not None:
            self.held.keep_over_exec()

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


class EnvironmentProvider:
    """Prepares environments.

    Args:
        packer: packs lists of packages when models are loaded, None if the operator has not allowed it.
        run_shell: runs activation hooks in a sandbox; None if there is none, and hooks do not run.
    """

    def __init__(
        self, cache: EnvironmentCache, packer: Packer | None = None, run_shell: RunShell | None = None
    ) -> None:
        self.cache = cache
        self.uses = EnvironmentUses()
        self._packer = packer
        self._specifications = SpecificationCache(cache)
        self._effects = None if run_shell is None else HookEffects(cache, run_shell)

    def open(self, path: Path, cancelled: threading.Event) -> ModelEnvironment:
        """Prepare an environment, and keep it until it is released. Blocking: not for the event loop.

        Raises ModelEnvironmentError if it cannot be obtained, or this host cannot start its Python.
        """
        canonical = canonical_path(path)
        held = None if canonical.is_dir() else self._hold(canonical, cancelled)
        prefix = canonical if held is None else held.prefix
        source = f"the environment {path}"
        try:
            check_activate(prefix, path)
            interpreter = find_interpreter(prefix, source)
            check_usable(interpreter, source)
            log.info("Using Python execution env %s", path)
            environment = self._activated(interpreter, held, cancelled)
        except BaseException as error:  # whatever ended it: nobody else would release the environment
            if held is not None:
                held.release()
                if held.was_unpacked and isinstance(error, ModelEnvironmentError):  # it is unusable for everyone
                    with suppress(OSError):
                        self.cache.remove(held.key)
            if isinstance(error, OSError):  # e.g. a directory of another user
                raise cannot_read(path, error) from error
            raise
        return ModelEnvironment(environment, interpreter, path, held)

    def _activated(
        self, interpreter: Interpreter, held: HeldEnvironment | None, cancelled: threading.Event
    ) -> Environment:
        prefix, manifest = interpreter.prefix, interpreter.manifest
        if held is not None:
            identity = held.key
        else:  # one that changes when packages are installed
            libraries = interpreter.libraries
            identity = f"{os.fspath(prefix)} {0 if libraries is None else libraries.stat().st_mtime_ns}"
        lacks_relative_rpath = interpreter.binary is not None and interpreter.binary.lacks_relative_rpath
        environment = Environment(
            python=interpreter.python,
            identity=identity,
            prefix=prefix,
            variables=activation_variables(prefix, manifest, keeps_library_path=lacks_relative_rpath),
        )
        hooks = hooks_of(prefix, has_manifest=manifest is not None)
        if not hooks or self._effects is None:
            return environment
        return self._effects.applied(environment, hooks, held, cancelled)

    def _hold(self, path: Path, cancelled: threading.Event) -> HeldEnvironment:
        if not path.is_file():
            raise ModelEnvironmentError(f"the environment {path} is neither a directory nor an archive")
        if not is_specification(path):
            return self.cache.hold(path, cancelled)
        if self._packer is None:
            raise not_packed(path)
        return self._specifications.hold(path, self._packer, cancelled)


def not_packed(path: Path) -> ModelEnvironmentError:
    """The error for a list of packages, where lists are not packed."""
    return ModelEnvironmentError(
        f"{path} lists packages, and this server does not install any: `pybackend pack {path}` makes an "
        "environment of it; with --allow-pack-at-load the server does so when the model is loaded"
    )


def canonical_path(path: Path) -> Path:
    """The path of an environment without links."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelEnvironmentError(
            f"Failed to get the canonical path for {path}. {why}: EXECUTION_ENV_PATH must name an environment; "
            f"{MODEL_DIRECTORY}/NAME is one in the model's directory, any other relative path is relative to the server's "
            f"working directory, {Path.cwd()}"
        ) from None


def cannot_read(path: Path, error: OSError) -> ModelEnvironmentError:
    """The error for an environment that cannot be read."""
    where = f" ({error.filename})" if error.filename and os.fspath(path) != error.filename else ""
    return ModelEnvironmentError(f"cannot read {path}: {error.strerror or error}{where}")


def check_activate(prefix: Path, path: Path) -> None:
    """Refuse a directory that is not an environment.

    Args:
        path: the archive it was unpacked from, or the directory itself.
    """
    activate = prefix / "bin" / "activate"
    if activate.is_file():
        return
    advice = f"{path} is no environment as conda-pack, `pybackend pack` or `python -m venv` make them"
    inside = [entry for entry in sorted(prefix.iterdir()) if (entry / "bin" / "activate").is_file()]
    if inside:
        advice = f"{path} has it in '{inside[0].name}/': name that directory, or pack its contents, not the directory"
    raise ModelEnvironmentError(
        f"Path {activate} does not exist. The Python environment should contain an 'activate' script. {advice}"
    )


class EnvironmentUses:
    """The environments in the configurations last read, whether or not their models are loaded."""

    def __init__(self) -> None:
        self._paths: dict[Path, Path] = {}

    def note(self, directory: Path, path: Path | None) -> None:
        """Record the environment of the model in this directory; None if it names none."""
        if path is None:
            self._paths.pop(directory, None)
        else:
            self._paths[directory] = path

    def directories(self, path: Path) -> list[Path]:
        """Directories of existing models that name the environment at this path. Blocking."""
        for directory, named in list(self._paths.items()):
            if named == path and not directory.exists():  # a model whose files came with a load, and are gone
                self._paths.pop(directory, None)
        return [directory for directory, named in list(self._paths.items()) if named == path]
