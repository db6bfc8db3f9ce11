"""The zygotes of a server: one for each environment and list of modules to preload.

The zygote of the host's own Python starts with the server and is not confined: it runs only the host's code. The zygote
of an environment starts when there is, or will be, a second process that it could fork, because only then it pays. It
is confined to what the models of its trust domain may reach together. Its reach cannot be widened later: if a model
comes whose files are outside it, another zygote is started in its place.
"""

import asyncio
import logging
import os
import socket
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.ipc.unwanted_descriptors import refuse_descriptors
from pybackend.process.orphans import Orphans
from pybackend.process.start import start_process, terms_of
from pybackend.process.stub_process import AdoptedProcess, StubEnds, StubLaunch, output_pipe
from pybackend.process.zygote import FORK_LIMIT_S, ZygoteError, ZygoteProcess
from pybackend.sandbox.trust_domain import Reach, TrustDomain
from pybackend_wire.confinement import STRICT, Confinement
from pybackend_wire.zygote import ARGUMENT

log = logging.getLogger(__name__)

PAUSE_S = 60.0
"""How long stubs of a kind start without a zygote after theirs has failed."""

IDLE_S = 60.0
"""How long a zygote lives on without stubs of its kind."""

RENEWAL_S = 5.0
"""Minimum life of a confined zygote, whatever it cannot reach: until then such processes start without one."""

RETIREMENT_S = FORK_LIMIT_S + 1.0
"""How long a replaced zygote lives on: until no code can still wait for its fork."""


@dataclass(frozen=True)
class ZygoteKind:
    """The properties shared by stubs that one zygote forks."""

    environment: Environment
    preload: tuple[str, ...]
    domain: TrustDomain | None = None  # the trust domain that it is confined for, None if it is not confined

    @property
    def name(self) -> str:
        return "_".join(["zygote", self.environment.identity[:12], *self.preload])


@dataclass(frozen=True, eq=False)
class _Running:
    """A zygote that was started."""

    kind: ZygoteKind
    zygote: ZygoteProcess
    mark: int
    reach: Reach | None  # the permissions that it can pass on, None if it is not confined
    started_s: float


class Zygotes:
    """Starts zygotes when they are needed, and replaces those that die."""

    def __init__(self, bundle: Path, own: Environment, orphans: Orphans, flags: tuple[str, ...] = ()) -> None:
        self._bundle = bundle
        self._own = own
        self._orphans = orphans
        self._flags = flags
        self._zygotes: dict[ZygoteKind, _Running] = {}
        self._retired: list[_Running] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: defaultdict[ZygoteKind, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wanted: Counter[ZygoteKind] = Counter()
        self._paused_until_s: dict[ZygoteKind, float] = {}
        self._complained: set[ZygoteKind] = set()
        self._stubs: Counter[ZygoteKind] = Counter()

    def kind_of(self, launch: StubLaunch) -> ZygoteKind | None:
        """Return the kind of zygote that would fork such a stub; None if it must start without one."""
        confinement, environment = launch.confinement, launch.environment or self._own
        if launch.preload is None or (confinement is not None and confinement.level == STRICT):
            return None
        if confinement is None or not environment.is_foreign:
            return ZygoteKind(environment, launch.preload)
        if launch.domain is None or not launch.domain.forks(confinement):
            return None
        return ZygoteKind(environment, launch.preload, launch.domain)

    def start_ahead(self, launch: StubLaunch) -> None:
        """Start the zygote for such stubs, so that it is ready when the first of them is needed."""
        kind = self.kind_of(launch)
        if kind is not None:
            with suppress(ZygoteError):
                self._zygote(kind)

    async def fork(self, kind: ZygoteKind, launch: StubLaunch, ends: StubEnds, mark: int) -> AdoptedProcess:
        if launch.confinement is None or kind.domain is None:
            zygote = self._zygote(kind)
        else:
            zygote = await self._reaching(kind, kind.domain, launch.confinement)
        try:
            process = await zygote.fork(launch, ends, mark)
        except ZygoteError as error:
            if kind in self._zygotes and self._zygotes[kind].zygote is zygote:
                self._close(kind)
            self._give_up(kind, str(error))
            raise
        self._stubs[kind] += 1
        return process

    def on_stub_end(self, kind: ZygoteKind) -> None:
        if kind not in self._stubs:
            return  # its domain has ended too
        self._stubs[kind] -= 1
        if not self._stubs[kind]:
            asyncio.get_running_loop().call_later(IDLE_S, self._close_if_unused, kind)

    def close_unused(self) -> None:
        """End zygotes that no stub has come from."""
        for kind in list(self._zygotes):
            self._close_if_unused(kind)

    def close(self) -> None:
        """End all zygotes; their forks live on."""
        for kind in list(self._zygotes):
            self._close(kind)
        for running in list(self._retired):
            self._end_retired(running)

    def _close_if_unused(self, kind: ZygoteKind) -> None:
        if not self._stubs[kind]:
            self._close(kind)
            if kind in self._wanted:
                self._wanted[kind] = 0

    def _close(self, kind: ZygoteKind) -> None:
        running = self._zygotes.pop(kind, None)
        if running is not None:
            self._end(running)

    def _end(self, running: _Running) -> None:
        running.zygote.close()
        self._orphans.end(running.mark)

    def _end_retired(self, running: _Running) -> None:
        if running in self._retired:
            self._retired.remove(running)
            self._end(running)

    def _end_domain(self, kind: ZygoteKind) -> None:
        """End a zygote whose domain has no models left."""
        for running in [running for running in self._retired if running.kind == kind]:
            self._end_retired(running)
        self._close(kind)
        for table in (self._paused_until_s, self._stubs, self._wanted, self._starting):
            table.pop(kind, None)
        self._complained.discard(kind)

    def _give_up(self, kind: ZygoteKind, why: str) -> None:
        self._paused_until_s[kind] = time.monotonic() + PAUSE_S
        if kind not in self._complained:
            self._complained.add(kind)
            log.warning(
                "model processes are started one by one for a while, not forked: the process to fork from (%s) %s",
                kind.name,
                why,
            )

    async def _reaching(self, kind: ZygoteKind, domain: TrustDomain, wanted: Confinement) -> ZygoteProcess:
        """Return a zygote of a domain that can fork a process with this confinement; starts one if necessary."""
        if kind not in self._wanted:
            domain.at_end(partial(self._end_domain, kind))
        self._wanted[kind] += 1
        if self._wanted[kind] == 1:
            if domain.expects_more():
                self._start_behind(kind, domain, wanted)
            raise ZygoteError("does not pay for a single process, and is not waited for")
        async with self._starting[kind]:
            running = self._zygotes.get(kind)
            if running is not None and not running.zygote.is_gone:
                if running.reach is not None and await asyncio.to_thread(running.reach.covers, wanted):
                    return running.zygote
                if not running.zygote.is_ready or time.monotonic() - running.started_s < RENEWAL_S:
                    raise ZygoteError("was started a short while ago")
            try:
                confinement = await asyncio.to_thread(domain.confinement)
            except (OSError, LookupError) as error:
                raise ZygoteError(f"cannot be confined: {error}") from error
            reach = await asyncio.to_thread(Reach, confinement)
            if domain.has_ended:
                raise ZygoteError("is not needed any more")
            replaced = self._zygotes.pop(kind, None)
            if replaced is not None:  # it ends later: other code may still wait for it
                self._retired.append(replaced)
                asyncio.get_running_loop().call_later(RETIREMENT_S, self._end_retired, replaced)
            return self._zygote(kind, confinement, reach)

    def _start_behind(self, kind: ZygoteKind, domain: TrustDomain, wanted: Confinement) -> None:
        """Start a zygote for stubs to come, while the first of them starts without it."""

        async def start() -> None:
            with suppress(ZygoteError):
                zygote = await self._reaching(kind, domain, wanted)
                zygote.attend()
                asyncio.get_running_loop().call_later(IDLE_S, self._close_if_unused, kind)

        task = asyncio.get_running_loop().create_task(start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _zygote(
        self, kind: ZygoteKind, confinement: Confinement | None = None, reach: Reach | None = None
    ) -> ZygoteProcess:
        """Return the zygote of a kind; starts it if necessary."""
        if time.monotonic() < self._paused_until_s.get(kind, 0.0):
            raise ZygoteError("failed a short while ago")
        running = self._zygotes.get(kind)
        if running is not None and not running.zygote.is_gone:
            return running.zygote
        self._close(kind)
        mark = self._orphans.new_mark(of_zygote=True)
        try:
            zygote = self._start(kind, mark, confinement)
        except OSError as error:
            self._orphans.end(mark)
            self._give_up(kind, f"cannot be started: {error.strerror}")
            raise ZygoteError(f"cannot be started: {error.strerror}") from error
        self._orphans.know(mark, zygote.pid)
        self._zygotes[kind] = _Running(kind, zygote, mark, reach, time.monotonic())
        return zygote

    def _start(self, kind: ZygoteKind, mark: int, confinement: Confinement | None) -> ZygoteProcess:
        with ExitStack() as theirs, ExitStack() as ours:
            terms = theirs.enter_context(terms_of(confinement, mark))
            our_end, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(our_end)
            theirs.enter_context(their_end)
            our_end.setblocking(False)
            refuse_descriptors(our_end)
            our_output, their_output = output_pipe()
            ours.callback(os.close, our_output)
            theirs.callback(os.close, their_output)
            arguments = (ARGUMENT, their_end.fileno(), os.getpid(), mark, *kind.preload)
            process, report = start_process(
                self._bundle,
                kind.environment,
                arguments,
                [their_end.fileno()],
                their_output,
                terms,
                flags=self._flags,
            )
            ours.pop_all()
        return ZygoteProcess(process, report, our_end, our_output, kind.name, mark, confinement)
