"""Starts the processes that become stubs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.process.orphans import Orphans
from pybackend.process.start import Entry, is_entered, start_process, terms_of
from pybackend.process.stub_process import HostEnds, Process, StubLaunch, StubProcess, connected_ends
from pybackend.process.zygote import ZygoteError
from pybackend.process.zygotes import Zygotes
from pybackend_wire.confinement import CONFINED, NOT_CONFINED


def pin(pid: int, cores: Collection[int]) -> None:
    """Keep a process on these cores: its present threads, and all that they will start.

    A process started ahead of time has imported numpy, and may have its threads, before its cores are chosen. A process
    that has ended meanwhile is not an error: the code that waits for it will notice.
    """
    pinned: set[int] = set()
    while True:
        try:
            threads = {int(name.name) for name in Path(f"/proc/{pid}/task").iterdir()}
        except OSError:
            return
        if threads <= pinned:
            return
        for thread in threads - pinned:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cores)
        pinned |= threads


_ANYHOW = StubLaunch()


class StubLauncher:
    """Starts stubs from one bundle, or has them forked.

    Stubs are alike until they are told which model to load, so they can be started ahead of time: while the host still
    reads configurations and imports its own packages, they, or the zygote that will fork them, already import numpy.

    Args:
        orphans: handles models' leftovers; None if this process is not a server itself.
        forks: whether stubs may be forked, which requires ``orphans``.
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
        return self._bundle

    def start_ahead(self, count: int, *, confined: bool) -> None:
        """Prepare for ``count`` calls of :meth:`start`.

        Args:
            confined: whether stubs will be confined. Their confinement is known only later, so none is started ahead.
        """
        if self._zygotes is not None and count:
            self._zygotes.start_ahead(_ANYHOW)
        if self._zygotes is not None or confined:
            return
        for _ in range(count):
            self._spare.append(self._spawn(_ANYHOW))

    async def start(self, launch: StubLaunch = _ANYHOW) -> StubProcess:
        """Start a stub that has not sent any message yet. Raises ModelLoadError if the process cannot be started."""
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
        """Handle models' leftovers; must be called about once a second."""
        if self._orphans is not None:
            self._orphans.tend()

    def close_unused(self) -> None:
        """End processes that were started ahead of time and never used."""
        for stub in self._spare:
            stub.discard()
        self._spare.clear()
        if self._zygotes is not None:
            self._zygotes.close_unused()

    def close(self) -> None:
        """End zygotes, unused processes, and models' leftovers."""
        self.close_unused()
        if self._zygotes is not None:
            self._zygotes.close()

    async def _fork(self, zygotes: Zygotes, launch: StubLaunch) -> StubProcess | None:
        """Fork a stub; None if it must be started instead."""
        kind = zygotes.kind_of(launch)
        if kind is None:
            return None
        mark = self._new_mark()
        try:
            with connected_ends() as (ours, theirs):
                process = await zygotes.fork(kind, launch, theirs, mark)
        except BaseException as error:  # cancelled, too: the mark would never be free again
            self._on_end(mark)
            if isinstance(error, (OSError, ZygoteError)):
                return None
            raise
        return self._stub(process, ours, mark, partial(zygotes.on_stub_end, kind))

    def _spawn(self, launch: StubLaunch) -> StubProcess:
        environment = launch.environment or self._own
        mark = self._new_mark()
        try:
            with connected_ends() as (ours, theirs), terms_of(launch.confinement, mark) as terms:
                inherited, word = [theirs.socket, theirs.nudges], NOT_CONFINED
                if is_entered(environment, launch.confinement):
                    word = CONFINED
                elif launch.confinement is not None:
                    inherited.append(terms.written)
                    word = str(terms.written)
                arguments = (theirs.socket, theirs.nudges, os.getpid(), mark, word)
                started = start_process(self._bundle, environment, arguments, inherited, theirs.output, terms)
        except OSError as error:
            self._on_end(mark)
            raise ModelLoadError(
                f"cannot start a model process with {environment.python}: {error.strerror}", ErrorCode.UNAVAILABLE
            ) from error
        return self._stub(started.process, ours, mark, entry=started.entry)

    def _new_mark(self) -> int:
        return 0 if self._orphans is None else self._orphans.new_mark()

    def _stub(
        self,
        process: Process,
        ends: HostEnds,
        mark: int,
        on_end: Callable[[], None] = lambda: None,
        entry: Entry | None = None,
    ) -> StubProcess:
        if self._orphans is not None:
            self._orphans.know(mark, process.pid)
        return StubProcess(process, ends, partial(self._on_end, mark, on_end), entry)

    def _on_end(self, mark: int, on_end: Callable[[], None] = lambda: None) -> None:
        on_end()
        if self._orphans is not None:
            self._orphans.end(mark)
