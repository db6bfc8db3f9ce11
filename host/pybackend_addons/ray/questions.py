"""Questions of clients that several replicas of an application must answer: statistics, metrics, the index."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from pybackend_addons.ray.changes import Answer, error_answer
from pybackend_addons.ray.cluster import KEY_HEADER, Cluster, Report
from pybackend_addons.ray.members import Member, Members
from pybackend_addons.ray.merging import labelled, merged_statistics

_CALL_S = 30.0


class Questions:
    """Asks the servers of replicas."""

    def __init__(self, cluster: Cluster, members: Members) -> None:
        self._cluster = cluster
        self._members = members
        self._session = aiohttp.ClientSession(
            headers={KEY_HEADER: cluster.key}, timeout=aiohttp.ClientTimeout(total=_CALL_S)
        )

    async def close(self) -> None:
        """End its connections."""
        await self._session.close()

    async def ask_one(self, path: str, pool: str | None) -> Answer:
        """The answer of any replica of a pool, or of any at all."""
        for member in self._members.current_of(pool):
            with suppress(aiohttp.ClientError, TimeoutError):
                return await self._get(member.report, path)
        return error_answer(503, "no replica answers")

    async def statistics(self, path: str) -> Answer:
        """The sums over all replicas."""
        answers = await self._from_all(path)
        documents = [json.loads(body) for status, body in answers.values() if status == 200]
        if documents:
            return 200, json.dumps(merged_statistics(documents)).encode()
        return next(iter(answers.values()), error_answer(503, "no replica answers"))

    async def index(self, document: Mapping[str, Any]) -> Answer:
        """The models of all pools, as a replica of each says."""
        rows: list[Any] = []
        for pool in self._cluster.every_pool:
            for member in self._members.current_of(pool.name):
                status, body = await self._index(member.report, document)
                if status == 400:
                    return status, body
                if status == 200:
                    rows += json.loads(body)
                    break
        return 200, json.dumps(rows).encode()

    async def indexes(self, members: Sequence[Member]) -> list[list[dict[str, str]]]:
        """The models of each of these replicas; none if it does not answer."""
        answers = await asyncio.gather(*(self._index(member.report, {}) for member in members))
        return [json.loads(body) if status == 200 else [] for status, body in answers]

    async def _index(self, report: Report, document: Mapping[str, Any]) -> Answer:
        url = f"http://{report.address}:{report.http_port}/v2/repository/index"
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(url, json=document) as response:
                return response.status, await response.read()
        return error_answer(503, "no replica answers")

    async def metrics(self) -> bytes:
        """The metrics of all replicas, each with the label ``replica``."""
        answers = await self._from_all("/metrics", metrics=True)
        return labelled({name: body.decode() for name, (status, body) in answers.items() if status == 200}).encode()

    async def metrics_of(self, name: str) -> Answer:
        """The metrics page of one replica, as it is."""
        for member in self._members.current:
            if member.report.name == name:
                with suppress(aiohttp.ClientError, TimeoutError):
                    return await self._get(member.report, "/metrics", metrics=True)
        return error_answer(404, f"there is no replica '{name}'")

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
                    "pool": report.pool,
                },
            }
            for report in (member.report for member in self._members.current)
        ]

    async def _from_all(self, path: str, *, metrics: bool = False) -> dict[str, Answer]:
        members = self._members.current
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
