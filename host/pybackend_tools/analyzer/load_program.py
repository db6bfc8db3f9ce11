"""The program that sends requests to a server and measures it, one job after the other: ``python -m``.

It reads a line of JSON for each job from standard input, writes one with the result to standard output, and ends with
its input. It shares no interpreter with the server.

A closed loop: each of its clients sends its next request when it has its answer. An open loop: requests are due at
random moments, as those of many independent users are, and a request that must wait for a free connection waits since
it was due. So a server that stops for a moment is not spared the requests of that moment.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import statistics
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any

import httptools
import uvloop

OK = 200
_ANSWER_S = 30
"""How long the last requests may take to be answered."""

_MOST_WAITING = 10_000
"""Requests of an open loop that wait for a connection; more say that the server cannot follow."""

_SHOWN_BYTES = 2000
_ERROR_EVENT = b'data: {"error"'
"""A stream has a good status, and may then end with this."""


class Client(asyncio.Protocol):
    """A connection, with at most one request at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._parser = httptools.HttpResponseParser(self)
        self._due_s = 0.0
        self._body = b""
        self._is_busy = False

    def connection_made(self, transport: Any) -> None:
        """Called by the event loop."""
        self._transport = transport
        self._job.free(self)

    def send(self, request: bytes, due_s: float) -> None:
        """Send a request; its time counts from ``due_s``."""
        self._due_s, self._body, self._is_busy = due_s, b"", True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._job.fail(f"the server's answer is not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        whole = self._body + body
        # An error ends a stream: its beginning may lie in an earlier part than its end.
        self._body = whole if len(whole) <= 2 * _SHOWN_BYTES else whole[:_SHOWN_BYTES] + whole[-_SHOWN_BYTES:]

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._is_busy = False
        is_error = self._parser.get_status_code() != OK or _ERROR_EVENT in self._body
        self._job.answered(self._due_s, self._body.decode(errors="replace") if is_error else None)
        self._parser = httptools.HttpResponseParser(self)
        self._job.free(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        if self._is_busy:
            self._job.fail(f"the server has closed a connection with a request on it ({error or 'end of file'})")

    def close(self) -> None:
        """Close the connection."""
        self._is_busy = False
        self._transport.close()


class Job:
    """One measurement: windows until the last three are alike."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self._requests = cycle([base64.b64decode(each) for each in asked["requests"]])
        self._waiting: deque[float] = deque()
        self._idle: list[Client] = []
        self._outstanding = 0
        self._is_open_loop = bool(asked["rate"])
        self._is_over = False
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._drained = asyncio.Event()
        self._latencies_s: list[float] = []
        self._errors = 0
        self._first_error = ""

    async def run(self) -> dict[str, Any]:
        """The result."""
        loop = asyncio.get_running_loop()
        clients: list[Any] = []
        windows = []
        try:
            for _ in range(self._asked["clients"]):
                _, client = await loop.create_connection(partial(Client, self), *self._asked["address"])
                clients.append(client)
            if self._is_open_loop:
                threading.Thread(target=self._arrivals, args=(loop,), daemon=True).start()
            await self._pass(self._asked["warm_s"])
            self._window()
            while not self._failed.done():
                began_s = time.perf_counter()
                await self._pass(self._asked["window_s"])
                windows.append((time.perf_counter() - began_s, *self._window()))
                if len(windows) >= self._asked["most_windows"] or is_steady(windows, self._asked["tolerance"]):
                    break
            self._is_over = True
            if self._outstanding and not self._failed.done():
                drained: asyncio.Future[Any] = loop.create_task(self._drained.wait())
                ends: list[asyncio.Future[Any]] = [self._failed, drained]
                await asyncio.wait(ends, timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
                if self._outstanding:
                    self.fail(f"{self._outstanding} requests had no answer for {_ANSWER_S} s")
        except OSError as error:
            self.fail(f"the server takes no connection: {error.strerror}")
        finally:
            self._is_over = True
            for client in clients:
                client.close()
        if self._failed.done():
            return {"failed": self._failed.result()}
        return _result(windows[-3:], self._first_error, is_steady=is_steady(windows, self._asked["tolerance"]))

    async def _pass(self, seconds: float) -> None:
        await asyncio.wait([self._failed], timeout=seconds)

    def _window(self) -> tuple[list[float], int]:
        """The times and the errors since the last call."""
        latencies_s, errors = self._latencies_s, self._errors
        self._latencies_s, self._errors = [], 0
        return latencies_s, errors

    def _arrivals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say when requests are due, in a thread: the event loop's own clock counts milliseconds."""
        chance = random.Random(self._asked["seed"])  # noqa: S311  no secret
        due_s = time.perf_counter()
        while not self._is_over:
            due_s += chance.expovariate(self._asked["rate"])
            time.sleep(max(0.0, due_s - time.perf_counter()))
            with suppress(RuntimeError):  # the measurement is over, and its loop closed
                loop.call_soon_threadsafe(self._arrive, due_s)

    def _arrive(self, due_s: float) -> None:
        if self._is_over:
            return
        self._waiting.append(due_s)
        if self._idle:
            self.free(self._idle.pop())
        elif len(self._waiting) > _MOST_WAITING:
            self.fail(f"{_MOST_WAITING} requests wait for a connection: the server cannot follow this rate")

    def free(self, client: Client) -> None:
        """A client has nothing to do: give it a request."""
        if self._is_over or self._failed.done():
            if not self._outstanding:
                self._drained.set()
        elif not self._is_open_loop:
            self._outstanding += 1
            client.send(next(self._requests), time.perf_counter())
        elif self._waiting:
            self._outstanding += 1
            client.send(next(self._requests), self._waiting.popleft())
        else:
            self._idle.append(client)

    def answered(self, due_s: float, error: str | None) -> None:
        """Count an answer."""
        self._outstanding -= 1
        if error is None:
            self._latencies_s.append(time.perf_counter() - due_s)
            return
        self._errors += 1
        self._first_error = self._first_error or error

    def fail(self, reason: str) -> None:
        """End the measurement without figures."""
        if not self._failed.done():
            self._failed.set_result(reason)


Window = tuple[float, list[float], int]
"""Seconds, the times of the answers, and the number of errors."""


def is_steady(windows: list[Window], tolerance: float) -> bool:
    """Whether the last three windows have about as many answers."""
    rates = [len(latencies_s) / seconds for seconds, latencies_s, _ in windows[-3:]]
    return len(rates) == 3 and max(rates) - min(rates) <= tolerance * statistics.median(rates)


def _result(windows: list[Window], first_error: str, *, is_steady: bool) -> dict[str, Any]:
    latencies_s = sorted(latency_s for window in windows for latency_s in window[1])
    rates = [len(window[1]) / window[0] for window in windows]
    return {
        "infer_per_s": statistics.median(rates),
        "least_per_s": min(rates),
        "most_per_s": max(rates),
        "is_steady": is_steady,
        "count": len(latencies_s),
        "errors": sum(window[2] for window in windows),
        "first_error": first_error,
        **{f"p{part}_ms": _quantile(latencies_s, part / 100) * 1000 for part in (50, 90, 99)},
    }


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def main() -> None:
    """Do the jobs of standard input."""
    for line in sys.stdin:

        async def job(asked: dict[str, Any]) -> dict[str, Any]:
            return await Job(asked).run()

        sys.stdout.write(f"{json.dumps(uvloop.run(job(json.loads(line))))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
