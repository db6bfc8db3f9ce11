"""The changes that each replica of an application must make at itself: loads, settings."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from pybackend.pools import DEFAULT_POOL
from pybackend_addons.ray.cluster import Change, Cluster, Outcome, Report
from pybackend_addons.ray.members import Member, Members

log = logging.getLogger(__name__)

Answer = tuple[int, bytes]
"""Status and body of an answer over HTTP."""

_LOAD = re.compile(r"/v2/repository/models/(?P<model>.+)/(?:load|unload)/?")
_TRAFFIC = re.compile(r"/v2/repository/models/(?P<model>.+)/traffic/?")
_MODEL = re.compile(r"/v2/(?:repository/)?models/(?P<model>[^/]+)/.*")


class Changes:
    """Numbers the changes, and remembers those that matter.

    It keeps nothing on a disk. A replica knows the changes that it has made: a coordinator that was started again
    learns them from the replicas that join it.
    """

    def __init__(self, cluster: Cluster, members: Members) -> None:
        self._cluster = cluster
        self._members = members
        self._kept: dict[str, Change] = {}
        self._newest: Change | None = None
        self._changing = asyncio.Lock()
        self.generation = 0  # the number of the newest one
        self.settled = 0  # all replicas that were there have made, or tried, the changes up to this one

    def learn(self, report: Report, made: Iterable[Change]) -> None:
        """A replica that joins has made these."""
        for change in made:
            known = self._kept.get(change.key)
            if known is None or known.generation < change.generation:
                self._kept[change.key] = change
            self.settled = max(self.settled, change.generation)
        self.generation = max(self.generation, self.settled, report.generation)

    def missed(self, generation: int) -> list[Change]:
        """The changes after a generation, with the one that is being made."""
        changes = sorted(self._kept.values(), key=lambda change: change.generation)
        if self._newest is not None:
            changes.append(self._newest)
        return [change for change in changes if change.generation > generation]

    def note(self, member: Member) -> None:
        """Take the outcomes from a replica's report."""
        kept = {change.generation: change for change in self._kept.values()}
        for outcome in member.report.outcomes:
            change = kept.get(outcome.generation)
            if change is None:
                member.outcomes[outcome.generation] = outcome
            elif outcome.status != 200 and member.report.release == self._cluster.release != change.release:
                # It was for models and flags of before the update.
                log.warning("%s is forgotten: %s", change.path, error_text(outcome.body))
                self._kept.pop(change.key)
            else:
                _note(member, change, outcome)

    def pool_of(self, path: str) -> str | None:
        """The pool of the model that a path names; None if it names none."""
        found = _MODEL.fullmatch(path)
        return None if found is None else self._cluster.pool_of.get(unquote(found["model"]), DEFAULT_POOL)

    async def make(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Let each replica post this at itself, and answer when all have. A caller that goes away ends nothing."""
        return await asyncio.shield(asyncio.create_task(self._make(path, body)))

    async def _make(self, path: str, body: Mapping[str, Any]) -> Answer:
        async with self._changing:
            pool = self.pool_of(path)
            if not self._members.current_of(pool):
                return error_answer(503, "no replica is there to do this: try again when one has started")
            for member in self._members.replicas.values():
                member.outcomes.clear()
            self.generation += 1
            change = self._merged(Change(self.generation, self._cluster.release, _key(path), path, body, pool))
            self._newest = change
            self._members.tell()
            outcomes = await self._outcomes(change)
            self._newest = None
            good = [outcome for outcome in outcomes.values() if outcome.status == 200]
            if not good:
                first = next(iter(outcomes.values()), None)
                return error_answer(503, "every replica went away") if first is None else (first.status, first.body)
            self._kept[change.key] = change
            self.settled = change.generation
            self._members.wake()
            for name, outcome in outcomes.items():
                if name in self._members.replicas:
                    _note(self._members.replicas[name], change, outcome)
            failed = {name: outcome for name, outcome in outcomes.items() if outcome.status != 200}
            return self._partial(path, outcomes, failed) if failed else (200, good[0].body)

    async def _outcomes(self, change: Change) -> dict[str, Outcome]:
        """Those of the replicas that were there, by their names, once each has made the change or is gone."""
        asked = {member.report.name for member in self._members.current}
        outcomes: dict[str, Outcome] = {}
        while waiting := asked - set(outcomes):
            await self._members.wait(lambda waiting=waiting: self._answered(change.generation, waiting))  # type: ignore[misc]
            current = {member.report.name: member for member in self._members.current}
            outcomes |= {
                name: current[name].outcomes.pop(change.generation)
                for name in waiting
                if name in current and change.generation in current[name].outcomes
            }
            asked &= set(current)
        concerned = {
            member.report.name
            for member in self._members.replicas.values()
            if change.pool in {None, member.report.pool}
        }
        return {name: outcome for name, outcome in outcomes.items() if name in concerned}

    def _answered(self, number: int, waiting: set[str]) -> bool:
        replicas = self._members.replicas
        return any(name not in replicas or number in replicas[name].outcomes for name in waiting)

    def _merged(self, change: Change) -> Change:
        """Settings that are not named stay as they are, so that a replica that starts later needs all of them."""
        before = self._kept.get(change.key)
        if before is None or _LOAD.fullmatch(change.path):
            return change
        return replace(change, body={**before.body, **change.body})

    def _partial(self, path: str, outcomes: Mapping[str, Outcome], failed: Mapping[str, Outcome]) -> Answer:
        replicas, done = self._members.replicas, len(outcomes) - len(failed)
        reasons = "; ".join(
            f"replica {name} on {replicas[name].report.address if name in replicas else 'a lost machine'}: "
            f"{error_text(outcome.body)}"
            for name, outcome in failed.items()
        )
        return error_answer(500, f"{path}: {done} of {len(outcomes)} replicas did this, and others lag. {reasons}")


def _note(member: Member, change: Change, outcome: Outcome) -> None:
    """Remember whether a replica has made a change that holds for all."""
    if outcome.status == 200:
        member.lags.pop(change.key, None)
    else:
        member.lags[change.key] = f"{change.path}: {error_text(outcome.body)}"


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


def error_answer(status: int, sentence: str) -> Answer:
    """An answer that is no success."""
    return status, json.dumps({"error": sentence}).encode()
