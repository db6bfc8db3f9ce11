"""Starts the processes that become stubs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.affinity import pin
from pybackend.instance.child_process import Process
from pybackend.instance.entry import NOT_CONFINED, start_process, written_confinement
from pybackend.instance.launch import StubLaunch
from pybackend.instance.orphans import Orphans
from pybackend.instance.stub_ends import HostEnds, connected_ends
from pybackend.instance.stub_process import StubProcess
from pybackend.instance.zygote import ZygoteError
from pybackend.instance.zygotes import Zygotes

_ANYHOW = StubLaunch()


class StubLauncher:
    """Starts stubs from one bundle, or has them forked.

    Stubs are alike until they are told which model to load, so they can be started ahead of time: while the host still
    reads configurations and imports its own packages, they, or the process to fork them from, already import numpy.

    Args:
        bundle: see below.
        own: the environment of models that name none.
        orphans: looks after what models leave behind; None where this process is not a server of its own.
        forks: whether stubs may be forked, which takes ``orphans``.

    Attributes:
        bundle: what stubs are started from.
    """

    def __init__(
        self,
        bundle: Path,
        own: Environment = HOST_ENVIRONMENT,
        orphans: Orphans | None = None,
        *,
        forks: bool = False,
    ) -> None:
        self._bundle = bundle
        self._own = own
        self._orphans = orphans
        self._zygotes = Zygotes(bundle, own, orphans) if forks and orphans is not None and orphans.adopts else None
        self._spare: list[StubProcess] = []

    @property
    def bundle(self) -> Path:
        """The directory that stubs are started from."""
        return self._bundle

    def start_ahead(self, count: int, *, confined: bool) -> None:
        """Get ready for so many calls of :meth:`start`.

        Args:
            count: how many.
            confined: stubs will be, in ways that are known only when they are wanted: none can be started before.
        """
        if self._zygotes is not None and count:
            self._zygotes.start_ahead(_ANYHOW)
        if self._zygotes is not None or confined:
            return
        for _ in range(count):
            self._spare.append(self._spawn(_ANYHOW))

    async def start(self, launch: StubLaunch = _ANYHOW) -> StubProcess:
        """A stub that has said nothing yet.

        Raises:
            ModelLoadError: the process cannot be started.
        """
        stub = await self._fork(self._zygotes, launch) if self._zygotes is not None else None
        if stub is not None:
            return stub
        if launch.environment is None and launch.confinement is None:
            stub = self._take_spare()
        stub = stub or self._spawn(launch)
        if launch.cores:
            pin(stub.pid, launch.cores)
        return stub

    def _take_spare(self) -> StubProcess | None:
        while self._spare:
            stub = self._spare.pop(0)
            if not stub.exit_cause:
                return stub
            stub.discard()
        return None

    def tend(self) -> None:
        """Look after what models have left behind; to be called about once a second."""
        if self._orphans is not None:
            self._orphans.tend()

    def close_unused(self) -> None:
        """End what was started ahead of time, and nobody has asked for."""
        for stub in self._spare:
            stub.discard()
        self._spare.clear()
        if self._zygotes is not None:
            self._zygotes.close_unused()

    def close(self) -> None:
        """End what stubs are forked from, those that nobody has asked for, and what models have left behind."""
        self.close_unused()
        if self._zygotes is not None:
            self._zygotes.close()

    async def _fork(self, zygotes: Zygotes, launch: StubLaunch) -> StubProcess | None:
        """A stub that was forked; None if it has to be started."""
        kind = zygotes.kind_of(launch)
        if kind is None:
            return None
        mark = self._new_mark()
        try:
            with connected_ends() as (ours, theirs):
                process = await zygotes.fork(kind, launch, theirs, mark)
        except BaseException as error:
            self._on_end(mark)
            if isinstance(error, (OSError, ZygoteError)):
                return None
            raise
        return self._stub(process, ours, mark, partial(zygotes.on_stub_end, kind))

    def _spawn(self, launch: StubLaunch) -> StubProcess:
        environment = launch.environment or self._own
        mark = self._new_mark()
        try:
            with connected_ends() as (ours, theirs), written_confinement(launch.confinement) as written:
                inherited = [theirs.socket, theirs.nudges] + [written] * (written != NOT_CONFINED)
                arguments = (theirs.socket, theirs.nudges, os.getpid(), mark, written)
                process = start_process(
                    self._bundle, environment, arguments, inherited, theirs.output, launch.confinement, written
                )
        except OSError as error:
            self._on_end(mark)
            raise ModelLoadError(
                f"cannot start a model process with {environment.python}: {error.strerror}", ErrorCode.UNAVAILABLE
            ) from error
        return self._stub(process, ours, mark)

    def _new_mark(self) -> int:
        return 0 if self._orphans is None else self._orphans.new_mark()

    def _stub(
        self, process: Process, ends: HostEnds, mark: int, on_end: Callable[[], None] = lambda: None
    ) -> StubProcess:
        if self._orphans is not None:
            self._orphans.know(mark, process.pid)
        return StubProcess(process, ends, partial(self._on_end, mark, on_end))

    def _on_end(self, mark: int, on_end: Callable[[], None] = lambda: None) -> None:
        on_end()
        if self._orphans is not None:
            self._orphans.end(mark)
