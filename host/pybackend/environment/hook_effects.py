"""What the hooks of environments set, found out once for each of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pybackend.environment.cache import EnvironmentCache, HeldEnvironment
from pybackend.environment.environment import Environment
from pybackend.environment.hooks import NOTHING, HookEffect, ShellRun, effect_of, shell_command
from pybackend.environment.unpacking import Cancelled
from pybackend.errors import PybackendError
from pybackend_wire.library_path import LIBRARY_PATH

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05

_OF_THE_LOADER = ("LD_LIBRARY_PATH", LIBRARY_PATH)
"""For the environment's Python: a shell of the system loads the system's libraries."""


class Runner(Protocol):
    """What runs shells; the sandbox has it."""

    def run(
        self, environment: Environment, directory: Path, command: Sequence[str], cancelled: threading.Event
    ) -> tuple[ShellRun, str]:
        """Run a shell, which knows the scripts' directory and those of the environment; also returns its private directory.

        Raises:
            PybackendError: it cannot be confined.
            OSError: it cannot be started.
            Cancelled: nobody waits any more.
        """


class HookEffects:
    """Remembers them: of unpacked environments beside these, of directories as long as this lives.

    Args:
        cache: of unpacked environments.
        runner: see above.
    """

    def __init__(self, cache: EnvironmentCache, runner: Runner) -> None:
        self._cache = cache
        self._runner = runner
        self._known: dict[Path, tuple[Hashable, HookEffect]] = {}
        self._locks: dict[Path, threading.Lock] = {}

    def applied(
        self,
        environment: Environment,
        hooks: Sequence[Path],
        held: HeldEnvironment | None,
        cancelled: threading.Event,
    ) -> Environment:
        """An environment with what its hooks set. Blocking: not for the event loop.

        A hook that does not do what hooks do keeps nobody from using the environment: a warning says which it was.

        Args:
            environment: without.
            hooks: at least one.
            held: None if it is no archive's.
            cancelled: set when the result is not wanted any more.

        Raises:
            Cancelled: it is not wanted any more.
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
        effect = None if held is None else self._cache.hook_effect(held.key)
        if effect is None:
            effect = self._found_out(environment, environment.prefix, hooks, cancelled)
            # What has gone wrong may have done so because the machine was busy: the next server looks again.
            if held is not None and not effect.complaints:
                self._cache.keep_hook_effect(held.key, effect)
        self._known[environment.prefix] = stamp, effect
        return effect

    def _found_out(
        self, environment: Environment, prefix: Path, hooks: Sequence[Path], cancelled: threading.Event
    ) -> HookEffect:
        variables = {name: value for name, value in environment.variables.items() if name not in _OF_THE_LOADER}
        variables["CONDA_PREFIX"] = str(prefix)
        activated = replace(environment, variables=variables)
        try:
            run, scratch = self._runner.run(activated, hooks[0].parent, shell_command(prefix, hooks), cancelled)
        except (OSError, ValueError, PybackendError) as error:
            log.warning("the activation hooks in %s are not run: %s", hooks[0].parent, error)
            return HookEffect(complaints=(str(error),))
        effect = effect_of(run, hooks, prefix, scratch)
        for complaint in effect.complaints:
            log.warning("activation hook %s", complaint)
        if effect != NOTHING:
            log.info("activation hooks of %s have set %s", prefix, ", ".join(effect.names) or "nothing")
        return effect


def _stamp(hook: Path) -> Hashable:
    with suppress(OSError):
        status = hook.stat()
        return hook.name, status.st_mtime_ns, status.st_size, status.st_ino
    return hook.name
