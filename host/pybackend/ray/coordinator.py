"""The coordinator of an application: who the replicas are, and the changes that each of them must make.

It keeps nothing on a disk. A replica knows the changes that it has made: a coordinator that was started again learns them from the
replicas that join it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp

from pybackend.ray.cluster import KEY_HEADER, Change, Cluster, Outcome, Report, Roster
from pybackend.ray.merging import labelled, merged_statistics

log = logging.getLogger(__name__)

_NEWS_S = 1.0
"""How long a report, or an entrance's question, waits for news."""

_SILENT_S = 15.0
"""A replica that has said nothing for this long is forgotten."""

_HEARD_S = 5.0
"""A replica that has said nothing for this long may have died, and does not count as ready."""

_APPLIED_S = 5.0
"""How long a replica that leaves waits for the entrances to know it."""

_CALL_S = 30.0

Answer = tuple[int, bytes]
"""Status and body of an answer over HTTP."""

_LOAD = re.compile(r"/v2/repository/models/(?P<model>.+)/(?:load|unload)")
_TRAFFIC = re.compile(r"/v2/repository/models/(?P<model>.+)/traffic")


@dataclass
class _Member:
    """A replica that has joined."""

    report: Report
    seat: int
    seen_s: float
    leaving: bool = False
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    lags: dict[str, str] = field(
        default_factory=dict
    )  # why it has not made a change that others have, by the change's key

    def note(self, change: Change, outcome: Outcome) -> None:
        """Remember whether it has made a change that holds for all."""
        if outcome.status == 200:
            self.lags.pop(change.key, None)
        else:
            self.lags[change.key] = f"{change.path}: {error_text(outcome.body)}"


@dataclass
class _Follower:
    """An entrance."""

    applied: int  # the number of the newest state that it has told HAProxy
    seen_s: float


class Coordinator:
    """The actor."""

    async def __init__(self, cluster: Cluster) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._cluster = cluster
        self._members: dict[str, _Member] = {}
        self._changes: dict[str, Change] = {}
        self._newest: Change | None = None
        self._generation = 0
        self._settled = 0  # all replicas that were there have made, or tried, the changes up to this one
        # It starts above the numbers of a coordinator before this one.
        self._roster_number = time.time_ns()
        self._began_s = time.monotonic()
        self._is_complete = False
        self._entrances: dict[str, _Follower] = {}
        self._news = asyncio.Event()  # another one after each piece of news
        self._changing = asyncio.Lock()
        self._session = aiohttp.ClientSession(
            headers={KEY_HEADER: cluster.key}, timeout=aiohttp.ClientTimeout(total=_CALL_S)
        )
        self.address = ("", 0, 0)  # where its ports listen

    async def close(self) -> None:
        """End its connections."""
        await self._session.close()

    # Replicas

    async def join(self, report: Report, changes: Iterable[Change]) -> tuple[int, list[Change]]:
        """Take a replica in. Returns its seat, and the changes that it must make; ``changes``: those that it has made."""
        for change in changes:
            known = self._changes.get(change.key)
            if known is None or known.generation < change.generation:
                self._changes[change.key] = change
        self._generation = max([self._generation, report.generation, *(each.generation for each in changes)])
        self._settled = max([self._settled, *(each.generation for each in changes)])
        taken = {member.seat for member in self._members.values()}
        free = [number for number in range(1, self._cluster.seats + 1) if number not in taken]
        # Sequences know a replica by its seat. Soon after the start, others may come and want those that they have.
        seat = report.seat if report.seat in free else free[0 if self._is_complete else -1]
        self._members[report.name] = _Member(report, seat, time.monotonic())
        self._tell()
        return seat, self._kept()

    async def report(self, report: Report) -> list[Change] | None:
        """Note how a replica is. Returns the changes that it must make, or None if it must join first."""
        member = self._members.get(report.name)
        if member is None:
            return None
        before, member.report, member.seen_s = member.report, report, time.monotonic()
        kept_changes = {change.generation: change for change in self._changes.values()}
        for outcome in report.outcomes:
            change = kept_changes.get(outcome.generation)
            if change is None:
                member.outcomes[outcome.generation] = outcome
            elif outcome.status != 200 and report.release == self._cluster.release != change.release:
                # It was for models and flags of before the update.
                log.warning("%s is forgotten: %s", change.path, error_text(outcome.body))
                self._changes.pop(change.key)
            else:
                member.note(change, outcome)
        if before != report:
            self._tell()
        await self._wait(lambda: bool(self._missed(report.generation)))
        member.seen_s = time.monotonic()
        return self._missed(report.generation)

    async def leave(self, report: Report) -> None:
        """Give a replica no more requests. Returns when the entrances know it."""
        if report.name not in self._members:  # this coordinator is new
            await self.join(report, [])
        self._members[report.name].leaving = True
        number = self._tell()
        await self._wait(lambda: self._all_applied(number), _APPLIED_S)
        # It works on requests that it has; its seat stays taken until it is silent.

    def _all_applied(self, number: int) -> bool:
        self._forget_silent()
        is_complete = self._is_complete or len(self._entrances) >= self._cluster.entrances
        return is_complete and all(entrance.applied >= number for entrance in self._entrances.values())

    def _missed(self, generation: int) -> list[Change]:
        """The changes after a generation, with the one that is being made."""
        changes = self._kept() if self._newest is None else [*self._kept(), self._newest]
        return [change for change in changes if change.generation > generation]

    def _kept(self) -> list[Change]:
        return sorted(self._changes.values(), key=lambda change: change.generation)

    # Entrances

    async def follow(self, entrance: str, number: int) -> Roster:
        """The state for an entrance that has applied the one with this number; waits a second for a newer one."""
        self._entrances[entrance] = _Follower(number, time.monotonic())
        self._wake()
        await self._wait(lambda: self._roster_number > number)
        self._forget_silent()
        if not self._is_complete and time.monotonic() - self._began_s > _SILENT_S:
            self._is_complete = True
            self._tell()
        return Roster(
            number=self._roster_number,
            complete=self._is_complete,
            places={member.seat: member.report for member in self._members.values()},
            leaving=frozenset(member.seat for member in self._members.values() if member.leaving),
            sequences=frozenset(name for member in self._members.values() for name in member.report.sequences),
            coordinator=self.address,
        )

    async def close_entrance(self, entrance: str) -> bool:
        """Wait for this entrance no more. Returns whether there is another one."""
        self._entrances.pop(entrance, None)
        self._forget_silent()
        return bool(self._entrances)

    def _tell(self) -> int:
        """Wake up who waits for news. Returns the number of the state that they will see."""
        self._roster_number += 1
        self._wake()
        return self._roster_number

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait(self, true: Callable[[], bool], seconds: float = _NEWS_S) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    await self._news.wait()

    def _forget_silent(self) -> None:
        oldest_s = time.monotonic() - _SILENT_S
        for name, member in list(self._members.items()):
            if member.seen_s < oldest_s:
                del self._members[name]
                self._roster_number += 1
        self._entrances = {name: each for name, each in self._entrances.items() if each.seen_s >= oldest_s}

    # Clients' calls

    @property
    def _current(self) -> list[_Member]:
        self._forget_silent()
        return [member for member in self._members.values() if not member.leaving]

    @property
    def is_ready(self) -> bool:
        """True if enough replicas are ready, and have made all changes."""
        return sum(self._serves(member) for member in self._current) >= self._cluster.min_replicas

    def _serves(self, member: _Member) -> bool:
        report = member.report
        is_heard = time.monotonic() - member.seen_s < _HEARD_S
        return is_heard and report.ready and report.generation >= self._settled and not member.lags

    async def change(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Let each replica post this at itself, and answer when all have. A caller that goes away ends nothing."""
        return await asyncio.shield(asyncio.create_task(self._change(path, body)))

    async def _change(self, path: str, body: Mapping[str, Any]) -> Answer:
        async with self._changing:
            asked = {member.report.name for member in self._current}
            if not asked:
                return _error(503, "no replica is there to do this: try again when one has started")
            for member in self._members.values():
                member.outcomes.clear()
            self._generation += 1
            number = self._generation
            change = self._newest = self._merged(Change(number, self._cluster.release, _key(path), path, body))
            self._tell()
            outcomes: dict[str, Outcome] = {}
            while waiting := asked - set(outcomes):
                await self._wait(lambda number=number, waiting=waiting: self._answered(number, waiting))  # type: ignore[misc]
                current = {member.report.name: member for member in self._current}
                outcomes |= {
                    name: current[name].outcomes.pop(number)
                    for name in waiting
                    if name in current and number in current[name].outcomes
                }
                asked &= set(current)
            self._newest = None
            good = [outcome for outcome in outcomes.values() if outcome.status == 200]
            if not good:
                first = next(iter(outcomes.values()), None)
                return _error(503, "every replica went away") if first is None else (first.status, first.body)
            self._changes[change.key] = change
            self._settled = number
            self._wake()
            for name, outcome in outcomes.items():
                if name in self._members:
                    self._members[name].note(change, outcome)
            failed = {name: outcome for name, outcome in outcomes.items() if outcome.status != 200}
            return self._partial(path, outcomes, failed) if failed else (200, good[0].body)

    def _answered(self, number: int, waiting: set[str]) -> bool:
        return any(name not in self._members or number in self._members[name].outcomes for name in waiting)

    def _merged(self, change: Change) -> Change:
        """Settings that are not named stay as they are, so that a replica that starts later needs all of them."""
        before = self._changes.get(change.key)
        if before is None or _LOAD.fullmatch(change.path):
            return change
        return replace(change, body={**before.body, **change.body})

    def _partial(self, path: str, outcomes: Mapping[str, Outcome], failed: Mapping[str, Outcome]) -> Answer:
        done = len(outcomes) - len(failed)
        reasons = "; ".join(
            f"replica {name} on {self._members[name].report.address if name in self._members else 'a lost machine'}: "
            f"{error_text(outcome.body)}"
            for name, outcome in failed.items()
        )
        return _error(500, f"{path}: {done} of {len(outcomes)} replicas did this, and others lag. {reasons}")

    async def ask_one(self, path: str) -> Answer:
        """The answer of any replica."""
        for member in self._current:
            with suppress(aiohttp.ClientError, TimeoutError):
                return await self._get(member.report, path)
        return _error(503, "no replica answers")

    async def statistics(self, path: str) -> Answer:
        """The sums over all replicas."""
        answers = await self._from_all(path)
        documents = [json.loads(body) for status, body in answers.values() if status == 200]
        if documents:
            return 200, json.dumps(merged_statistics(documents)).encode()
        return next(iter(answers.values()), _error(503, "no replica answers"))

    async def metrics(self) -> bytes:
        """The metrics of all replicas, each with the label ``replica``."""
        answers = await self._from_all("/metrics", metrics=True)
        return labelled({name: body.decode() for name, (status, body) in answers.items() if status == 200}).encode()

    async def metrics_of(self, name: str) -> Answer:
        """The metrics page of one replica, as it is."""
        for member in self._current:
            if member.report.name == name:
                with suppress(aiohttp.ClientError, TimeoutError):
                    return await self._get(member.report, "/metrics", metrics=True)
        return _error(404, f"there is no replica '{name}'")

    def metrics_targets(self, entrance: str) -> list[dict[str, Any]]:
        """What Prometheus's discovery over HTTP wants to know: a target for each replica, which it reaches at the entrance."""
        return [
            {
                "targets": [entrance],
                "labels": {
                    "__metrics_path__": f"/metrics/replicas/{report.name}",
                    "replica": report.name,
                    "machine": report.address,
                    "node": report.node,
                },
            }
            for report in (member.report for member in self._current)
        ]

    async def _from_all(self, path: str, *, metrics: bool = False) -> dict[str, Answer]:
        members = self._current
        found = await asyncio.gather(
            *(self._get(member.report, path, metrics=metrics) for member in members), return_exceptions=True
        )
        return {
            member.report.name: answer
            for member, answer in zip(members, found, strict=True)
            if not isinstance(answer, BaseException)
        }

    async def _get(self, report: Report, path: str, *, metrics: bool = False) -> Answer:
        port = report.metrics_port if metrics else report.http_port
        async with self._session.get(f"http://{report.address}:{port}{path}") as response:
            return response.status, await response.read()

    async def status(self) -> dict[str, Any]:
        """All that ``pybackend status --on=ray`` shows."""
        members = self._current
        indexes = await asyncio.gather(*(self._index(member.report) for member in members))
        return {
            "ready": self.is_ready,
            "generation": self._generation,
            "min_replicas": self._cluster.min_replicas,
            "max_replicas": self._cluster.max_replicas,
            "entrances": len(self._entrances),
            "replicas": [
                {
                    **{name: value for name, value in asdict(member.report).items() if name != "outcomes"},
                    "lags": "; ".join(member.lags.values()),
                    "serves": self._serves(member),
                    "models": index,
                }
                for member, index in zip(members, indexes, strict=True)
            ],
        }

    async def _index(self, report: Report) -> list[dict[str, str]]:
        url = f"http://{report.address}:{report.http_port}/v2/repository/index"
        with suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with self._session.post(url, json={}) as response:
                rows: list[dict[str, str]] = await response.json()
                return rows
        return []


def _key(path: str) -> str:
    for kind, pattern in (("load", _LOAD), ("traffic", _TRAFFIC)):
        found = pattern.fullmatch(path)
        if found:
            return f"{kind} {found['model']}"
    return path


def error_text(body: bytes) -> str:
    """The sentence of an answer that is no success."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"])
    return body.decode(errors="replace")[:1000]


def _error(status: int, sentence: str) -> Answer:
    return status, json.dumps({"error": sentence}).encode()
