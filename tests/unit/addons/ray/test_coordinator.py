"""The tests play the replicas and the entrances."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pybackend.pools import DEFAULT_POOL
from pybackend_addons.ray.cluster import Change, Cluster, Outcome, Pool, Report
from pybackend_addons.ray.coordinator import Coordinator

DEADLINE_S = 60.0


class Player:
    """A replica without a server, which answers changes with a status."""

    def __init__(
        self, coordinator: Coordinator, name: str, status: int = 200, text: str = "", pool: str = DEFAULT_POOL
    ) -> None:
        self.report = Report(name, "node", "127.0.0.1", 1, 2, 3, "1.0", Cluster(arguments=()).release, pool, ready=True)
        self.servers: Mapping[str, Sequence[str]] = {}
        self.status = status
        self.made: list[Change] = []
        self._coordinator = coordinator
        self._body = json.dumps({"error": text}).encode() if text else b"{}"
        self._task: asyncio.Task[None] | None = None

    async def join(self, coordinator: Coordinator | None = None) -> None:
        self._coordinator = coordinator or self._coordinator
        seat, news = await self._coordinator.join(self.report, list(self.made))
        self.report = replace(self.report, seat=seat, roster=news.roster)
        self._make(news.changes)
        if self.report.outcomes:
            await self.tell()

    def _make(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if self.status == 200 and change.pool in {None, self.report.pool}:
                self.made.append(change)
            outcome = Outcome(change.generation, self.status, self._body)
            self.report = replace(self.report, generation=change.generation, outcomes=(*self.report.outcomes, outcome))

    async def tell(self) -> None:
        news = await self._coordinator.report(self.report)
        self.report = replace(self.report, outcomes=())
        if news is None:
            await self.join()
        else:
            self.servers = news.servers
            self.report = replace(self.report, roster=news.roster)
            self._make(news.changes)

    async def run(self) -> None:
        while True:
            await self.tell()


@asynccontextmanager
async def playing(*players: Player) -> AsyncIterator[None]:
    for player in players:
        await player.join()
    tasks = [asyncio.create_task(player.run()) for player in players]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_coordinators: list[Coordinator] = []


def run(coroutine: Any) -> None:
    async def main() -> None:
        try:
            await asyncio.wait_for(coroutine, DEADLINE_S)
        finally:
            while _coordinators:
                await _coordinators.pop().close()

    asyncio.run(main())


async def coordinator_of(least: int = 2, arguments: tuple[str, ...] = (), pools: tuple[Pool, ...] = ()) -> Coordinator:
    coordinator = Coordinator.__new__(Coordinator)
    cluster = Cluster(arguments=arguments, min_replicas=least, max_replicas=4, pools=pools)
    await coordinator.__init__(cluster)  # type: ignore[misc]
    _coordinators.append(coordinator)
    return coordinator


LOAD = "/v2/repository/models/a/load"
UNLOAD = "/v2/repository/models/a/unload"


def test_a_change_is_answered_when_all_have_made_it() -> None:
    async def main() -> None:
        coordinator = await coordinator_of()
        one, two = Player(coordinator, "one"), Player(coordinator, "two")
        async with playing(one, two):
            assert await coordinator.changes.make(LOAD, {}) == (200, b"{}")
            assert [change.path for change in one.made] == [change.path for change in two.made] == [LOAD]
            assert coordinator.is_ready

    run(main())


def test_a_replica_that_cannot_lags_and_the_answer_names_it() -> None:
    async def main() -> None:
        coordinator = await coordinator_of()
        one, two = Player(coordinator, "one"), Player(coordinator, "two", 500, "no room")
        async with playing(one, two):
            status, body = await coordinator.changes.make(LOAD, {})
            assert status == 500
            assert json.loads(body)["error"] == (
                f"{LOAD}: 1 of 2 replicas did this, and others lag. replica two on 127.0.0.1: no room"
            )
            assert not coordinator.is_ready
            two.status = 200
            assert (await coordinator.changes.make(LOAD, {}))[0] == 200
            assert coordinator.is_ready

    run(main())


def test_a_change_that_none_can_make_does_not_count() -> None:
    async def main() -> None:
        coordinator = await coordinator_of()
        one, two, late = (
            Player(coordinator, "one", 404, "no such"),
            Player(coordinator, "two", 404, "no such"),
            Player(coordinator, "late"),
        )
        async with playing(one, two):
            assert await coordinator.changes.make(LOAD, {}) == (404, b'{"error": "no such"}')
            assert coordinator.is_ready
            await late.join()
            assert late.made == []

    run(main())


def test_a_late_replica_makes_only_the_changes_that_matter() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(least=1)
        one, late = Player(coordinator, "one"), Player(coordinator, "late")
        async with playing(one):
            for path, body in (
                (LOAD, {}),
                ("/v2/logging", {"log_info": True}),
                (UNLOAD, {}),
                ("/v2/logging", {"log_error": False}),
            ):
                assert (await coordinator.changes.make(path, body))[0] == 200
            await late.join()
        assert [(change.path, dict(change.body)) for change in late.made] == [
            (UNLOAD, {}),
            ("/v2/logging", {"log_info": True, "log_error": False}),
        ]

    run(main())


def test_another_coordinator_learns_the_changes_from_replicas() -> None:
    async def main() -> None:
        first, second = await coordinator_of(), await coordinator_of()
        one, two, late = Player(first, "one"), Player(first, "two"), Player(second, "late")
        async with playing(one, two):
            await first.changes.make(LOAD, {})
            await first.changes.make("/v2/logging", {"log_info": True})
        assert await second.report(one.report) is None
        before = await first.follow("entrance", 0)
        await two.join(second)
        roster = await second.follow("entrance", 0)
        assert not second.is_ready
        assert not roster.complete
        (seat, other) = (two.report.seat, one.report.seat)
        assert {seat: report.name for seat, report in roster.places.items()} == {seat: "two"}
        assert {seat: report.name for seat, report in roster.after(before).places.items()} == {
            seat: "two",
            other: "one",
        }
        await one.join(second)
        assert second.is_ready
        await late.join()
        assert [change.path for change in late.made] == [LOAD, "/v2/logging"]

    run(main())


def test_a_replica_leaves_when_the_entrances_know() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(least=1)
        one = Player(coordinator, "one")
        async with playing(one):
            roster = await coordinator.follow("entrance", 0)
            assert roster.leaving == frozenset()
            leaving = asyncio.create_task(coordinator.leave(one.report))
            roster = await coordinator.follow("entrance", roster.number)
            assert roster.leaving == {one.report.seat}
            assert not leaving.done()
            following = asyncio.create_task(coordinator.follow("entrance", roster.number))
            await leaving
            await following
            assert not coordinator.is_ready

    run(main())


def test_a_replica_that_a_new_coordinator_does_not_know_leaves_when_the_entrance_knows() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(least=1)
        one = Player(coordinator, "one")
        leaving = asyncio.create_task(coordinator.leave(one.report))
        roster = await coordinator.follow("entrance", 0)
        if not roster.places:
            roster = await coordinator.follow("entrance", roster.number)
        assert [report.name for report in roster.places.values()] == ["one"]
        assert roster.leaving == set(roster.places)
        assert not leaving.done()
        following = asyncio.create_task(coordinator.follow("entrance", roster.number))
        await leaving
        await following

    run(main())


def test_an_update_forgets_the_changes_that_its_replicas_cannot_make() -> None:
    """Such as a load of a model that the next repository does not have."""

    async def main() -> None:
        first, second = await coordinator_of(least=1), await coordinator_of(least=1, arguments=("--next",))
        old, new = Player(first, "old"), Player(second, "new", 404, "no such model")
        async with playing(old):
            await first.changes.make(LOAD, {})
        new.report = replace(new.report, release=Cluster(arguments=("--next",)).release)
        await old.join(second)
        await new.join()
        assert second.is_ready
        later = Player(second, "later")
        await later.join()
        assert later.made == []

    run(main())


def test_an_entrance_knows_whether_another_one_is_there() -> None:
    async def main() -> None:
        coordinator = await coordinator_of()
        await coordinator.follow("one", 0)
        await coordinator.follow("other", 0)
        assert await coordinator.close_entrance("one")
        assert not await coordinator.close_entrance("other")

    run(main())


def test_a_caller_that_goes_away_stops_nothing() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(least=1)
        one = Player(coordinator, "one")
        await one.join()
        calling = asyncio.create_task(coordinator.changes.make(LOAD, {}))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        async with playing(one):
            assert (await coordinator.changes.make("/v2/logging", {}))[0] == 200
        assert [change.path for change in one.made] == [LOAD, "/v2/logging"]

    run(main())


def test_a_change_of_a_model_concerns_its_pool_only() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(1, pools=(Pool("vision", ("a b",)),))
        usual, vision = Player(coordinator, "usual"), Player(coordinator, "vision", pool="vision")
        load, settings = "/v2/repository/models/a%20b/load", "/v2/models/a%20b/trace/setting"
        async with playing(usual, vision):
            assert (await coordinator.changes.make(load, {}))[0] == 200
            assert (await coordinator.changes.make(settings, {}))[0] == 200
            assert (await coordinator.changes.make(LOAD, {}))[0] == 200
            assert (await coordinator.changes.make("/v2/logging", {}))[0] == 200
            assert [change.path for change in usual.made] == [LOAD, "/v2/logging"]
            assert [change.path for change in vision.made] == [load, settings, "/v2/logging"]
            assert coordinator.is_ready
            vision.status = 400
            assert (await coordinator.changes.make(load, {}))[0] == 400
            assert coordinator.is_ready

    run(main())


def test_replicas_know_the_servers_of_all_pools_and_leave_when_the_others_know() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(1, pools=(Pool("vision", ("a",)),))
        usual, vision = Player(coordinator, "usual"), Player(coordinator, "vision", pool="vision")
        other = Player(coordinator, "other", pool="vision")
        vision.report, other.report = replace(vision.report, grpc_port=7), replace(other.report, grpc_port=8)
        async with playing(usual, vision, other):
            usual.report = replace(usual.report, roster=0)
            await coordinator.report(usual.report)
            everybody = {"default": ("127.0.0.1:2",), "vision": ("127.0.0.1:7", "127.0.0.1:8")}
            await coordinator.members.wait(lambda: usual.servers == everybody, DEADLINE_S)
            assert not {usual.report.seat, vision.report.seat, other.report.seat} & {0}
            await coordinator.follow("entrance", 2**63)
            await coordinator.leave(vision.report)
            assert usual.servers == {"default": ("127.0.0.1:2",), "vision": ("127.0.0.1:8",)}

    run(main())


def test_a_replica_of_a_pool_that_is_gone_gets_no_requests() -> None:
    async def main() -> None:
        coordinator = await coordinator_of(1)
        async with playing(Player(coordinator, "one"), gone := Player(coordinator, "gone", pool="vision")):
            roster = await coordinator.follow("entrance", 0)
            assert gone.report.seat == 0
            assert {report.name for report in roster.places.values()} == {"one"}

    run(main())
