"""The zygotes of a server: one for each environment and list of modules to preload."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.instance.child_process import AdoptedProcess
from pybackend.instance.launch import StubLaunch
from pybackend.instance.orphans import Orphans
from pybackend.instance.process_variables import process_variables
from pybackend.instance.stub_ends import StubEnds, output_pipe
from pybackend.instance.zygote import Zygote, ZygoteError
from pybackend_wire.confinement import OFF, STRICT
from pybackend_wire.zygote import ARGUMENT

log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""After one could not do what it is for, how long stubs of its kind are started without."""

IDLE_S = 60.0
"""How long one lives on when no stub of its kind does."""


@dataclass(frozen=True)
class ZygoteKind:
    """What stubs have in common that are forked from one process.

    Not the level of their sandbox: it runs no code of models, and every fork confines itself before it does.
    """

    environment: Environment
    preload: tuple[str, ...]

    @property
    def name(self) -> str:
        """For the log."""
        return "_".join(["zygote", self.environment.identity[:12], *self.preload])


class Zygotes:
    """Starts zygotes when they are needed, and others in place of those that die.

    Args:
        bundle: what stubs are started from.
        own: the environment of models that name none.
        orphans: knows which processes are this server's.
    """

    def __init__(self, bundle: Path, own: Environment, orphans: Orphans) -> None:
        self._bundle = bundle
        self._own = own
        self._orphans = orphans
        self._zygotes: dict[ZygoteKind, Zygote] = {}
        self._marks: dict[ZygoteKind, int] = {}
        self._paused_until_s: dict[ZygoteKind, float] = {}
        self._complained: set[ZygoteKind] = set()
        self._stubs: Counter[ZygoteKind] = Counter()

    def kind_of(self, launch: StubLaunch) -> ZygoteKind | None:
        """Which of them would fork such a stub; None if it is to be started without."""
        level = OFF if launch.confinement is None else launch.confinement.level
        environment = launch.environment or self._own
        # What has imported a foreign environment is not confined enough itself to be the origin of what is to be confined.
        if not launch.zygote or level == STRICT or (level != OFF and environment.prefix is not None):
            return None
        return ZygoteKind(environment, launch.preload)

    def start_ahead(self, launch: StubLaunch) -> None:
        """Start the one that forks such stubs, so that it is ready when the first of them is wanted."""
        kind = self.kind_of(launch)
        if kind is not None:
            with suppress(ZygoteError):
                self._zygote(kind)

    async def fork(self, kind: ZygoteKind, launch: StubLaunch, ends: StubEnds, mark: int) -> AdoptedProcess:
        """A process that is to become a stub.

        Raises:
            ZygoteError: it has to be started without a zygote, for now.
        """
        zygote = self._zygote(kind)
        try:
            process = await zygote.fork(launch, ends, mark)
        except ZygoteError as error:
            if self._zygotes.get(kind) is zygote:
                self._close(kind)
            self._give_up(kind, str(error))
            raise
        self._stubs[kind] += 1
        return process

    def on_stub_end(self, kind: ZygoteKind) -> None:
        """A stub that was forked has ended."""
        self._stubs[kind] -= 1
        if not self._stubs[kind]:
            asyncio.get_running_loop().call_later(IDLE_S, self._close_if_unused, kind)

    def close_unused(self) -> None:
        """End those that no stub has come from."""
        for kind in list(self._zygotes):
            self._close_if_unused(kind)

    def close(self) -> None:
        """End all of them; what they have forked lives on."""
        for kind in list(self._zygotes):
            self._close(kind)

    def _close_if_unused(self, kind: ZygoteKind) -> None:
        if not self._stubs[kind]:
            self._close(kind)

    def _close(self, kind: ZygoteKind) -> None:
        zygote = self._zygotes.pop(kind, None)
        if zygote is not None:
            zygote.close()
            self._orphans.end(self._marks.pop(kind))

    def _give_up(self, kind: ZygoteKind, why: str) -> None:
        self._paused_until_s[kind] = time.monotonic() + PAUSE_S
        if kind not in self._complained:
            self._complained.add(kind)
            log.warning(
                "model processes are started one by one for a while, not forked: the process to fork from (%s) %s",
                kind.name,
                why,
            )

    def _zygote(self, kind: ZygoteKind) -> Zygote:
        """The one of a kind, started if there is none.

        Raises:
            ZygoteError: it cannot be started, or one has failed a short while ago.
        """
        if time.monotonic() < self._paused_until_s.get(kind, 0.0):
            raise ZygoteError("has failed a short while ago")
        zygote = self._zygotes.get(kind)
        if zygote is not None and not zygote.is_gone:
            return zygote
        self._close(kind)
        mark = self._orphans.new_mark(of_zygote=True)
        try:
            zygote = self._start(kind, mark)
        except OSError as error:
            self._orphans.end(mark)
            self._give_up(kind, f"cannot be started: {error.strerror}")
            raise ZygoteError(f"cannot be started: {error.strerror}") from error
        self._orphans.know(mark, zygote.pid)
        self._zygotes[kind], self._marks[kind] = zygote, mark
        return zygote

    def _start(self, kind: ZygoteKind, mark: int) -> Zygote:
        python = str(kind.environment.python)
        with ExitStack() as theirs, ExitStack() as ours:
            our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(our_end)
            theirs.enter_context(their_end)
            our_end.setblocking(False)
            our_output, their_output = output_pipe()
            ours.callback(os.close, our_output)
            theirs.callback(os.close, their_output)
            arguments = [ARGUMENT, *map(str, (their_end.fileno(), os.getpid(), mark)), *kind.preload]
            process = subprocess.Popen(
                [python, "-I", "-B", str(self._bundle), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=[their_end.fileno()],
                env=process_variables(kind.environment),
                start_new_session=True,
            )
            ours.pop_all()
        return Zygote(process, our_end, our_output, kind.name)
