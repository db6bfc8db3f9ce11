"""The coordinator of an application: who the members are, and the changes that each replica must make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pybackend_addons.ray.changes import Changes
from pybackend_addons.ray.cluster import Change, Cluster, News, Report, Roster
from pybackend_addons.ray.members import Member, Members
from pybackend_addons.ray.questions import Questions

_APPLIED_S = 5.0
"""How long a replica that leaves waits for those that send requests to know it."""


class Coordinator:
    """The actor: what replicas, entrances and the command call."""

    async def __init__(self, cluster: Cluster) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._cluster = cluster
        self.members = Members(cluster)
        self.changes = Changes(cluster, self.members)
        self.questions = Questions(cluster, self.members)
        self.address = ("", 0, 0)  # where its ports listen

    async def close(self) -> None:
        """End its connections."""
        await self.questions.close()

    # Replicas

    async def join(self, report: Report, made: Iterable[Change]) -> tuple[int, News]:
        """Take a replica in, which has made these changes. Returns its seat, and what it must do."""
        self.changes.learn(report, made)
        return self.members.join(report).seat, self._news(0)

    async def report(self, report: Report) -> News | None:
        """Note how a replica is. Returns what it must do, or None if it must join first."""
        member = self.members.hear(report)
        if member is None:
            return None
        self.changes.note(member)
        has_pools = bool(self._cluster.pools)
        await self.members.wait(
            lambda: bool(self.changes.missed(report.generation)) or (has_pools and self.members.number > report.roster)
        )
        # It has waited here, and was there.
        again = self.members.hear(member.report)
        return None if again is None else self._news(report.generation)

    def _news(self, generation: int) -> News:
        servers = self.members.servers() if self._cluster.pools else {}
        return News(tuple(self.changes.missed(generation)), self.members.number, servers)

    async def leave(self, report: Report) -> None:
        """Give a replica no more requests. Returns when all know it that send some."""
        if report.name not in self.members.replicas:  # this coordinator is new
            await self.join(report, [])
        self.members.replicas[report.name].leaving = True
        number = self.members.tell()
        await self.members.wait(lambda: self.members.all_know(number), _APPLIED_S)
        # It works on requests that it has; its seat stays taken until it is silent.

    # Entrances

    async def follow(self, entrance: str, number: int) -> Roster:
        """The state for an entrance that has applied the one with this number; waits a second for a newer one."""
        self.members.follow(entrance, number)
        await self.members.wait(lambda: self.members.number > number)
        return self.members.roster(self.address)

    async def close_entrance(self, entrance: str) -> bool:
        """Wait for this entrance no more. Returns whether there is another one."""
        self.members.forget_entrance(entrance)
        return bool(self.members.entrances)

    # The command, and clients

    @property
    def is_ready(self) -> bool:
        """True if enough replicas of each pool are ready, and have made all changes."""
        return all(
            sum(map(self._serves, self.members.current_of(pool.name))) >= pool.min_replicas
            for pool in self._cluster.every_pool
        )

    def _serves(self, member: Member) -> bool:
        return member.is_ready and member.report.generation >= self.changes.settled

    async def status(self) -> dict[str, Any]:
        """All that ``pybackend status --on=ray`` shows."""
        members = self.members.current
        indexes = await self.questions.indexes(members)
        return {
            "ready": self.is_ready,
            "generation": self.changes.generation,
            "pools": {
                pool.name: {"min_replicas": pool.min_replicas, "max_replicas": pool.max_replicas}
                for pool in self._cluster.every_pool
            },
            "entrances": len(self.members.entrances),
            "replicas": [
                {
                    **{
                        name: value
                        for name, value in asdict(member.report).items()
                        if name not in {"outcomes", "roster"}
                    },
                    "lags": "; ".join(member.lags.values()),
                    "serves": self._serves(member),
                    "models": index,
                }
                for member, index in zip(members, indexes, strict=True)
            ],
        }
