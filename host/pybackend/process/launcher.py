"""Starts the processes that become stubs."""

import os
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from pybackend.environment.environment import HOST_ENVIRONMENT, Environment
from pybackend.errors import ErrorCode, ModelLoadError, ServerError
from pybackend.observability.model_output import ModelOutput
from pybackend.process.orphans import Orphans
from pybackend.process.start import (
    BYTES_WARNINGS,
    SandboxReport,
    is_entered,
    start_host_program,
    start_process,
    terms_of,
)
from pybackend.process.stub_process import (
    HostEnds,
    Process,
    StubHandle,
    StubLaunch,
    StubProcess,
    connected_ends,
    output_pipe,
)
from pybackend.process.zygote import ZygoteError
from pybackend.process.zygotes import Zygotes
from pybackend_wire.confinement import CONFINED, NOT_CONFINED, Confinement

_ANYHOW = StubLaunch()


class StubLauncher:
    """Starts stubs from one bundle, or has them forked.

    Stubs are alike until they are told which model to load, so the zygote that forks them can be started ahead of time:
    it imports numpy while the host still reads configurations and imports its own packages.

    Args:
        orphans: handles models' leftovers; None if this process is not a server itself.
        forks: whether stubs may be forked, which requires ``orphans``.
        warns_of_bytes: whether Python warns of bytes that models compare with str, which costs time.
    """

    def __init__(
        self,
        bundle: Path,
        own: Environment = HOST_ENVIRONMENT,
        orphans: Orphans | None = None,
        *,
        forks: bool = False,
        warns_of_bytes: bool = False,
    ) -> None:
        self.bundle = bundle
        self._own = own
        self._orphans = orphans
        self._flags = (BYTES_WARNINGS,) if warns_of_bytes else ()
        self._zygotes = None
        if forks and orphans is not None and orphans.adopts:
            self._zygotes = Zygotes(bundle, own, orphans, self._flags)

    def start_ahead(self) -> None:
        """Start the zygote of the host's own Python, so that it is ready when the first stub is needed."""
        if self._zygotes is not None:
            self._zygotes.start_ahead(_ANYHOW)

    async def start(self, launch: StubLaunch = _ANYHOW, output: ModelOutput | None = None) -> StubHandle:
        """Start a stub that has not sent any message yet. Raises ModelLoadError if the process cannot be started.

        The output of a separate process goes to ``output``.
        """
        if launch.seat is None:
            process = await self._start(launch)
            if output is not None:
                process.send_output_to(output)
            return process
        try:
            return await launch.seat(partial(self._start, launch))
        except OSError as error:
            raise ModelLoadError(f"cannot start a model process: {error.strerror}", ErrorCode.UNAVAILABLE) from error

    async def _start(self, launch: StubLaunch) -> StubProcess:
        stub = await self._fork(self._zygotes, launch) if self._zygotes is not None else None
        if stub is None:
            stub = self._spawn(launch)
            if launch.cores:
                with suppress(ProcessLookupError):  # the code that waits for it will notice its end
                    os.sched_setaffinity(stub.pid, launch.cores)
        return stub

    def start_host_program(
        self,
        name: str,
        module: str,
        sockets: tuple[socket.socket, socket.socket],
        inherited: Collection[int],
        confinement: Confinement,
    ) -> StubProcess:
        """Start a module of the host's own in a sandbox.

        ``sockets`` are the two ends of its socket, of which the second is closed here; the module's ``main`` gets the
        number of that descriptor. Raises ServerError if the process cannot be started.
        """
        ours, theirs = sockets
        mark = self._new_mark()
        output, their_output = output_pipe()
        try:
            with terms_of(confinement, mark) as terms:
                kept = (theirs.fileno(), *inherited)
                process, report = start_host_program(name, module, kept[:1], kept, their_output, terms)
        except OSError as error:
            os.close(output)
            self._on_end(mark)
            raise ServerError(f"cannot start {name}: {error.strerror}") from error
        finally:
            os.close(their_output)
            theirs.close()
        return self._stub(process, HostEnds(ours, output=output), mark, report=report)

    def tend(self) -> None:
        """Handle models' leftovers; must be called about once a second."""
        if self._orphans is not None:
            self._orphans.tend()

    def close_unused(self) -> None:
        """End zygotes that no stub has come from."""
        if self._zygotes is not None:
            self._zygotes.close_unused()

    def close(self) -> None:
        """End zygotes, and models' leftovers."""
        if self._zygotes is not None:
            self._zygotes.close()

    def leave_to_parent(self) -> None:
        """In a forked child of the host: its processes are the parent's."""
        if self._orphans is not None:
            self._orphans.leave_to_parent()

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
                process, report = start_process(
                    self.bundle, environment, arguments, inherited, theirs.output, terms, launch.variables, self._flags
                )
        except OSError as error:
            self._on_end(mark)
            raise ModelLoadError(
                f"cannot start a model process with {environment.python}: {error.strerror}", ErrorCode.UNAVAILABLE
            ) from error
        return self._stub(process, ours, mark, report=report)

    def _new_mark(self) -> int:
        return 0 if self._orphans is None else self._orphans.new_mark()

    def _stub(
        self,
        process: Process,
        ends: HostEnds,
        mark: int,
        on_end: Callable[[], None] = lambda: None,
        report: SandboxReport | None = None,
    ) -> StubProcess:
        if self._orphans is not None:
            self._orphans.know(mark, process.pid)
        return StubProcess(process, ends, partial(self._on_end, mark, on_end), report)

    def _on_end(self, mark: int, on_end: Callable[[], None] = lambda: None) -> None:
        on_end()
        if self._orphans is not None:
            self._orphans.end(mark)
