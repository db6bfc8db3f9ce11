"""A replica: one whole server with its models' processes, started and watched by an actor of Ray Serve."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from ray import serve
from ray.util import get_node_ip_address

from pybackend import __version__
from pybackend.pools import Pools
from pybackend.ports import free_ports
from pybackend_addons.ray.cluster import (
    KEY_HEADER,
    Change,
    Cluster,
    News,
    Outcome,
    Report,
    follower,
    keyed,
    private_directory,
)
from pybackend_addons.ray.scaling import COMPUTING, WAITING

log = logging.getLogger(__name__)

_KEPT_LINES = 30
_START_POLL_S = 0.05
_LOOKS_PER_INDEX = 5
_RETRY_S = 1.0
_LEAVE_S = 15.0
_ON_THE_WAY_S = 0.5
"""Requests that were sent before their senders knew that the replica leaves arrive within this time."""

_REPORT_S = 20.0
_LOOK_S = 10.0
_END_S = 10.0
"""How long a server may take after the time for its requests."""

_STARTING = b"the server is still starting"
_ONGOING = ("nv_inference_pending_request_count", "pybackend_executions_running")
_SAMPLE = re.compile(rf"^({'|'.join((*_ONGOING, WAITING, COMPUTING))})(\{{[^}}]*\}}) (\S+)$", re.MULTILINE)


class ServerStartError(RuntimeError):
    """The server of a replica ended before it was ready; Ray Serve shows the text."""


class _Server:
    """The process, and HTTP with it."""

    def __init__(self, cluster: Cluster, pool: str) -> None:
        self.address = get_node_ip_address()
        self.http_port, self.grpc_port, self.metrics_port = free_ports(self.address, 3)
        self._cluster = cluster
        self._pools = Pools(pool, cluster.pool_of, {}, {KEY_HEADER: cluster.key})
        self._directory = private_directory("replica")
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._session = aiohttp.ClientSession(
            headers={KEY_HEADER: cluster.key}, timeout=aiohttp.ClientTimeout(total=None, connect=_RETRY_S * 10)
        )
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._samples: dict[tuple[str, str], float] = {}  # of the metrics, when they were read last

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Return when all models were loaded, or at least tried."""
        directory = await asyncio.to_thread(_existing, self._cluster.directory)
        key_file = self._directory / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(f"{self._cluster.key}\n")
        self._write_pools()
        self._process = await asyncio.create_subprocess_exec(
            *follower(),
            sys.executable,
            "-m",
            "pybackend",
            "serve",
            *self._cluster.arguments,
            f"--http-address={self.address}",
            f"--http-port={self.http_port}",
            f"--grpc-address={self.address}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={self.address}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self._cluster.exit_timeout_s}",
            f"--api-key-file={key_file}",
            "--allow-client-shm=false",
            *([f"--pools-file={self._pools_file}"] if self._cluster.pools else []),
            *_defaults(self._cluster.arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_models_environment(os.environ),
            cwd=directory,
            start_new_session=True,
            limit=1 << 20,
        )
        self._reading = asyncio.create_task(self._show_log())
        while not await self._has_loaded():
            if not self.is_running:
                await self._reading
                raise ServerStartError("the server ended while it started:\n" + "\n".join(self._lines))
            await asyncio.sleep(_START_POLL_S)

    @property
    def _pools_file(self) -> Path:
        return self._directory / "pools.json"

    def _write_pools(self) -> None:
        new = self._directory / "pools.new"  # the server reads it at any time
        new.touch(mode=0o600)
        new.write_text(self._pools.text())
        new.replace(self._pools_file)

    def tell_servers(self, servers: Mapping[str, tuple[str, ...]]) -> None:
        """Let models call these servers of other pools."""
        if servers != self._pools.servers and self._process is not None and self.is_running:
            self._pools = replace(self._pools, servers=servers)
            self._write_pools()
            self._process.send_signal(signal.SIGHUP)  # read it now

    async def _has_loaded(self) -> bool:
        """True if it takes changes: it has loaded all models, or tried.

        It says that it is ready before it begins to load.
        """
        try:
            _, body = await self.call("POST", "/v2/repository/models/-/unload", {})
        except aiohttp.ClientError:
            return False
        return _STARTING not in body

    async def _show_log(self) -> None:
        """The server's lines become those of the actor, which Ray collects."""
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.append(text)
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    async def call(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body of the server's answer."""
        async with self._session.request(
            method, f"http://{self.address}:{self.http_port}{path}", json=document
        ) as response:
            return response.status, await response.read()

    async def figures(self) -> dict[str, float]:
        """The requests that wait and the executions that run, and since the call before, the times of waiting and computing."""
        async with self._session.get(f"http://{self.address}:{self.metrics_port}/metrics") as response:
            found = {(name, labels): float(value) for name, labels, value in _SAMPLE.findall(await response.text())}
        before, self._samples = self._samples, found

        def grown(name: str) -> float:
            return sum(max(0.0, value - before.get(key, 0.0)) for key, value in found.items() if key[0] == name)

        return {
            "ongoing": sum(value for (name, _), value in found.items() if name in _ONGOING),
            "waiting": grown(WAITING),
            "computing": grown(COMPUTING),
        }

    async def stop(self) -> None:
        """Let it answer the requests that it has."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), self._cluster.exit_timeout_s + _END_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._reading is not None:
            await self._reading
        await self._session.close()
        shutil.rmtree(self._directory, ignore_errors=True)


_SOCKETS = "--allow-unix-sockets"


def _defaults(arguments: Iterable[str]) -> list[str]:
    """Flags that hold unless the operator gives them: Ray's own sockets demand no token, and HAProxy's no key."""
    return [] if any(word.partition("=")[0] == _SOCKETS for word in arguments) else [f"{_SOCKETS}=false"]


def _existing(directory: str) -> str:
    """The directory where the command was given, if this machine has it too."""
    return directory if os.path.isdir(directory) else "/"


def _models_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without Ray's: models have no part in the cluster, and choose their threads as on one machine."""
    return {name: value for name, value in environ.items() if not name.startswith("RAY_") and name != "OMP_NUM_THREADS"}


class Replica:
    """The actor."""

    async def __init__(self, cluster: Cluster, coordinator: Any, pool: str) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._coordinator = coordinator
        self._server = _Server(keyed(cluster), pool)
        self._changes: dict[str, Change] = {}
        self._looks = 0
        context = serve.get_replica_context()
        try:
            await self._server.start()
            server = self._server
            self._report = Report(
                name=context.replica_id.unique_id,
                node=_node_id(),
                address=server.address,
                http_port=server.http_port,
                grpc_port=server.grpc_port,
                metrics_port=server.metrics_port,
                version=__version__,
                release=cluster.release,
                pool=pool,
            )
            await self._look()
            await self._join()
        except BaseException:
            await self._server.stop()
            raise
        self._following = asyncio.create_task(self._follow())

    async def check_health(self) -> None:
        """Ray Serve replaces the replica if the server has ended; its models' processes are the server's to restart."""
        if not self._server.is_running:
            raise ServerStartError("the server has ended")
        if self._following.done():
            raise ServerStartError("the replica no longer tells the coordinator how it is")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The figures that the scaling policy decides by."""
        with suppress(aiohttp.ClientError):
            return await self._server.figures()
        return {}

    async def __del__(self) -> None:  # Ray Serve awaits it before the actor ends
        if not hasattr(self, "_following"):
            return
        self._following.cancel()
        with suppress(Exception):  # without the coordinator, the entrances notice it by their checks
            await asyncio.wait_for(_reply(self._coordinator.leave.remote(self._report)), _LEAVE_S)
        await asyncio.sleep(_ON_THE_WAY_S)
        await self._server.stop()

    async def _join(self) -> None:
        seat, news = await _reply(self._coordinator.join.remote(self._report, list(self._changes.values())))
        self._report = replace(self._report, seat=seat)
        await self._take(news)

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
                news = await asyncio.wait_for(_reply(self._coordinator.report.remote(self._report)), _REPORT_S)
                self._report = replace(self._report, outcomes=())
                if news is None:
                    await self._join()
                else:
                    await self._take(news)
            except Exception as error:  # noqa: BLE001  whatever it is, the coordinator must know of this replica again
                log.warning("Cannot tell the coordinator how this replica is: %r", error)
                await asyncio.sleep(_RETRY_S)

    async def _take(self, news: News) -> None:
        self._server.tell_servers(news.servers)
        self._report = replace(self._report, roster=news.roster)
        await self._make(news.changes)

    async def _make(self, changes: Iterable[Change]) -> None:
        """Make changes at the server that it has not made yet."""
        for change in changes:
            if change.generation <= self._report.generation:
                continue
            status, body = 200, b""
            if change.pool in {None, self._report.pool}:
                status, body = await self._server.call("POST", change.path, change.body)
            if status == 200:
                self._changes[change.key] = change
            outcomes = (*self._report.outcomes, Outcome(change.generation, status, body))
            self._report = replace(self._report, generation=change.generation, outcomes=outcomes)
            self._looks = 0
            await self._look()

    async def _look(self) -> None:
        """Ask the server whether it is ready and, now and then, for its models."""
        async with asyncio.timeout(_LOOK_S):
            status, _ = await self._server.call("GET", "/v2/health/ready")
        sequences = self._report.sequences
        if self._looks % _LOOKS_PER_INDEX == 0:
            sequences = await self._sequence_models()
        self._looks += 1
        self._report = replace(self._report, ready=status == 200, sequences=sequences)

    async def _sequence_models(self) -> tuple[str, ...]:
        _, body = await self._server.call("POST", "/v2/repository/index", {"ready": True})
        found = []
        for name in sorted({row["name"] for row in json.loads(body)}):
            status, text = await self._server.call("GET", f"/v2/models/{name}/config")
            if status == 200 and "sequence_batching" in json.loads(text):
                found.append(name)
        return tuple(found)


async def _reply(response: Any) -> Any:
    """A reply of the coordinator; Ray's own objects are awaitable, but no coroutines."""
    return await response


def _node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
