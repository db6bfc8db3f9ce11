"""The effects of environments' activation hooks, determined once per environment."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pybackend.environment.cache import EnvironmentCache, HeldEnvironment
from pybackend.environment.environment import Environment
from pybackend.environment.hooks import NOTHING, HookEffect, ShellRun, effect_of, shell_command
from pybackend.environment.unpacking import Cancelled
from pybackend.errors import PybackendError
from pybackend_wire.library_path import LIBRARY_PATH

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05

_OF_THE_LOADER = ("LD_LIBRARY_PATH", LIBRARY_PATH)
"""Variables for the environment's Python. A system shell must load the system's libraries instead."""


RunShell = Callable[[Environment, Path, Sequence[str], threading.Event], tuple[ShellRun, str]]
"""Runs a shell that may read the scripts' directory and the environment; also returns the shell's private directory.

The event is set when the result is no longer needed. It raises PybackendError (the shell cannot be confined), OSError (it cannot be
started) or Cancelled.
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

        Args:
            held: the cached environment, None for a directory.

        Raises:
            Cancelled: ``cancelled`` was set first.
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
            # A failure may be due to a busy machine, so it is not stored: the next server tries again.
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
