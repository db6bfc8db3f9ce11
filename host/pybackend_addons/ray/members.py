"""The members of an application: replicas and entrances, which tell the coordinator how they are and wait for news."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pybackend_addons.ray.cluster import Cluster, Outcome, Report, Roster

_NEWS_S = 1.0
"""How long a report, or an entrance's question, waits for news."""

_SILENT_S = 15.0
"""A member that has said nothing for this long is forgotten."""

_HEARD_S = 5.0
"""A replica that has said nothing for this long may have died, and does not count as ready."""


@dataclass
class Member:
    """A replica that has joined."""

    report: Report
    seat: int  # 0 if it gets no requests: its pool is gone
    seen_s: float
    leaving: bool = False
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # of changes for which a caller waits
    lags: dict[str, str] = field(
        default_factory=dict
    )  # why it has not made a change that others have, by the change's key

    @property
    def is_ready(self) -> bool:
        """True if it says so, and was heard of lately."""
        return self.report.ready and not self.lags and time.monotonic() - self.seen_s < _HEARD_S

    @property
    def grpc_address(self) -> str:
        """Where its server listens for calls of other servers."""
        host = self.report.address
        return f"[{host}]:{self.report.grpc_port}" if ":" in host else f"{host}:{self.report.grpc_port}"


@dataclass
class _Follower:
    """An entrance."""

    applied: int  # the number of the newest state that it has told HAProxy
    seen_s: float


class Members:
    """All members, and their places. The state has a number, which grows with each change."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.replicas: dict[str, Member] = {}
        self.entrances: dict[str, _Follower] = {}
        self.number = time.time_ns()  # above those of a coordinator before this one
        self._began_s = time.monotonic()
        self._is_complete = False  # soon after the start, others may be there that have not joined yet
        self._news = asyncio.Event()  # another one after each piece of news

    # News

    def tell(self) -> int:
        """Wake up all that wait: the state is another one. Returns its number."""
        self.number += 1
        self.wake()
        return self.number

    def wake(self) -> None:
        """Wake up all that wait."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self, true: Callable[[], bool], seconds: float = _NEWS_S) -> None:
        """Wait until this is true, but not for longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    await self._news.wait()

    # Replicas

    def join(self, report: Report) -> Member:
        """Take a replica in."""
        taken = {member.seat for member in self.replicas.values()}
        free = [number for number in self._cluster.seats.get(report.pool, ()) if number not in taken]
        # Sequences know a replica by its seat. Soon after the start, others may come and want those that they have.
        usual = free[0 if self._is_complete else -1] if free else 0
        seat = report.seat if report.seat in free else usual
        member = self.replicas[report.name] = Member(report, seat, time.monotonic(), leaving=not seat)
        self.tell()
        return member

    def hear(self, report: Report) -> Member | None:
        """Note how a replica is; None if it has not joined."""
        member = self.replicas.get(report.name)
        if member is not None:
            before, member.report, member.seen_s = member.report, report, time.monotonic()
            if (before.ready, before.sequences) != (report.ready, report.sequences):
                self.tell()
            elif before != report:
                self.wake()
        return member

    @property
    def current(self) -> list[Member]:
        """The replicas that get requests."""
        self._forget_silent()
        return [member for member in self.replicas.values() if not member.leaving]

    def current_of(self, pool: str | None) -> list[Member]:
        """Those of a pool; None for all."""
        return [member for member in self.current if pool in {None, member.report.pool}]

    def servers(self) -> Mapping[str, tuple[str, ...]]:
        """The addresses of the servers of each pool that can take calls of others: those that are ready, or else all."""
        found = {}
        for pool in self._cluster.every_pool:
            members = self.current_of(pool.name)
            ready = [member for member in members if member.is_ready]
            found[pool.name] = tuple(sorted(member.grpc_address for member in ready or members))
        return found

    # Entrances

    def follow(self, entrance: str, number: int) -> None:
        """An entrance has applied the state with this number."""
        self.entrances[entrance] = _Follower(number, time.monotonic())
        self.wake()

    def forget_entrance(self, entrance: str) -> None:
        """An entrance ends."""
        self.entrances.pop(entrance, None)
        self._forget_silent()

    def roster(self, coordinator: tuple[str, int, int]) -> Roster:
        """The state for entrances."""
        self._forget_silent()
        if not self._is_complete and time.monotonic() - self._began_s > _SILENT_S:
            self._is_complete = True
            self.tell()
        seated = [member for member in self.replicas.values() if member.seat]
        return Roster(
            number=self.number,
            complete=self._is_complete,
            places={member.seat: member.report for member in seated},
            leaving=frozenset(member.seat for member in seated if member.leaving),
            sequences=frozenset(name for member in seated for name in member.report.sequences),
            coordinator=coordinator,
        )

    def all_know(self, number: int) -> bool:
        """True if all entrances, and the servers of other pools that may call, know the state with this number."""
        self._forget_silent()
        is_complete = self._is_complete or len(self.entrances) >= self._cluster.entrances
        callers = self.current if self._cluster.pools else []
        return (
            is_complete
            and all(entrance.applied >= number for entrance in self.entrances.values())
            and all(member.report.roster >= number for member in callers)
        )

    def _forget_silent(self) -> None:
        oldest_s = time.monotonic() - _SILENT_S
        for name, member in list(self.replicas.items()):
            if member.seen_s < oldest_s:
                del self.replicas[name]
                self.number += 1
        self.entrances = {name: each for name, each in self.entrances.items() if each.seen_s >= oldest_s}
