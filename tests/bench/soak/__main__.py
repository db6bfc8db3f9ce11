"""``python -m tests.bench.soak``: mixed requests from clients that come and go, killed stubs, reloads, and a verdict.

    python -m tests.bench.soak --requests 1000000
    python -m tests.bench.soak --minutes 10

The run has failed if an answer was wrong or missing, if an error has no reason, or if the idle server holds more at the
end than after the first requests. The latency of a single client before and after is shown, and not judged: neighbours
can fake it.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path

from tests.bench.soak.clients import GRPC_KINDS, HTTP_KINDS, Tally, deserter, latencies_us, session
from tests.bench.soak.holdings import Holdings, holdings
from tests.bench.soak.models import RELOADED, reload, write_models
from tests.support.server import ServerProcess, serving

WARM_UP_REQUESTS = 5_000
SETTLE_S = 90
SAMPLE_S = 5
PROBES = 2_000
"""Requests of the single client whose latency is shown."""

GROWTH = {"host_mib": 32.0, "models_mib": 64.0}
"""Growth that is no leak: allocators keep some memory, and a process that was replaced is not as large as its
forerunner."""


class Soak:
    """One run."""

    def __init__(
        self,
        server: ServerProcess,
        requests: int,
        seconds: float,
        clients: int,
        kill_every_s: float = 0,
        reload_every_s: float = 0,
    ) -> None:
        self._server = server
        self._addresses = (server.port, server.grpc_url)
        self._requests = requests
        self._end = time.monotonic() + seconds
        self._clients = clients
        self._kill_every_s = kill_every_s
        self._reload_every_s = reload_every_s
        self.tally = Tally()
        self.kills = 0
        self.reloads = 0
        self.peak: dict[str, float] = {}

    def _goes_on(self) -> bool:
        return self.tally.total < self._requests and time.monotonic() < self._end

    async def run(self) -> None:
        """Until there were enough requests, or the time is over."""
        tasks = [asyncio.create_task(self._client()) for _ in range(self._clients)]
        others = [asyncio.create_task(self._watch())]
        if self._kill_every_s:
            others.append(asyncio.create_task(self._kill()))
        if self._reload_every_s:
            others.append(asyncio.create_task(self._reload()))
        await asyncio.gather(*tasks)
        for task in others:
            task.cancel()
        for outcome in await asyncio.gather(*others, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                self.tally.failures[f"{type(outcome).__name__}: {outcome}"] += 1

    async def _client(self) -> None:
        while self._goes_on():
            if random.random() < 0.15:
                await deserter(*self._addresses, self.tally)
            else:
                await session(random.choice(HTTP_KINDS * 2 + GRPC_KINDS), *self._addresses, self.tally)

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self._kill_every_s)
            stubs = self._server.stub_pids()
            if stubs:
                os.kill(random.choice(stubs), signal.SIGKILL)
                self.kills += 1

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(self._reload_every_s)
            await asyncio.to_thread(reload, self._server, random.choice(RELOADED), self.reloads)
            self.reloads += 1

    async def _watch(self) -> None:
        began, before = time.monotonic(), 0
        while True:
            await asyncio.sleep(SAMPLE_S)
            now = holdings(self._server.process.pid)
            for field in fields(Holdings):
                self.peak[field.name] = max(self.peak.get(field.name, 0), getattr(now, field.name))
            total = self.tally.total
            print(
                f"{time.monotonic() - began:6.0f} s {total:9,} requests, {(total - before) / SAMPLE_S:6,.0f}/s, {self.kills} kills, {self.reloads} reloads, "
                f"{self.tally.casualties.total()} casualties, {self.tally.failures.total()} failures, host {now.host_mib:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
            before = total


def settled(server: ServerProcess, wanted: Holdings | None) -> Holdings:
    """What an idle server holds; waits until that is no more than wanted, or for as long as it may take."""
    end = time.monotonic() + SETTLE_S
    found = holdings(server.process.pid)
    while time.monotonic() < end and (wanted is None or growth(wanted, found)):
        time.sleep(1)
        found = holdings(server.process.pid)
        if wanted is None and time.monotonic() > end - SETTLE_S + 15:
            break
    return found


def growth(before: Holdings, after: Holdings) -> list[str]:
    """What is more afterwards than it may be."""
    return [
        field.name
        for field in fields(Holdings)
        if getattr(after, field.name) > getattr(before, field.name) + GROWTH.get(field.name, 0)
    ]


def table(before: Holdings, peak: dict[str, float], after: Holdings) -> str:
    lines = ["| | before | peak | after | verdict |", "|---|---|---|---|---|"]
    grown = growth(before, after)
    for field in fields(Holdings):
        cells = (getattr(before, field.name), peak.get(field.name, 0), getattr(after, field.name))
        verdict = "GROWN" if field.name in grown else "ok"
        lines.append(f"| {field.name} | {' | '.join(f'{cell:,.0f}' for cell in cells)} | {verdict} |")
    return "\n".join(lines)


def counted(name: str, counter: Counter[str]) -> str:
    return f"{name}: {counter.total():,}" + "".join(f"\n  {count:9,} {key}" for key, count in counter.most_common())


def main() -> int:
    """The exit status: 1 if something was wrong, or was held at the end."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak", description="A long run of mixed requests, and a verdict."
    )
    parser.add_argument("--requests", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="end after this time even so")
    parser.add_argument("--clients", type=int, default=24, help="at a time (default: %(default)s)")
    parser.add_argument(
        "--reload-every",
        type=float,
        default=15,
        metavar="SECONDS",
        help="0 loads no model again (default: %(default)s)",
    )
    parser.add_argument(
        "--kill-every", type=float, default=10, metavar="SECONDS", help="0 kills no stub (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pybackend-soak-") as folder:
        repository = Path(folder) / "models"
        write_models(repository)
        with serving(repository, flags=("--model-control-mode=explicit", "--load-model=*")) as server:
            asyncio.run(Soak(server, WARM_UP_REQUESTS, 600, options.clients).run())
            before, early_us = settled(server, None), asyncio.run(latencies_us(server.port, PROBES))
            soak = Soak(
                server,
                options.requests,
                60 * options.minutes,
                options.clients,
                options.kill_every,
                options.reload_every,
            )
            began = time.monotonic()
            asyncio.run(soak.run())
            seconds = time.monotonic() - began
            server.wait_until("/v2/health/ready", 200, SETTLE_S)
            after, late_us = settled(server, before), asyncio.run(latencies_us(server.port, PROBES))
            status = server.stop()
    tally = soak.tally
    print(
        f"\n{tally.total:,} requests in {seconds:,.0f} s, {soak.kills} stubs killed, {soak.reloads} models loaded "
        f"again; the server ended with status {status}\n"
    )
    print(table(before, soak.peak, after))
    for name, place in (("p50", PROBES // 2), ("p99", PROBES * 99 // 100)):
        print(f"| one_client_{name}_us | {early_us[place]:,.0f} | | {late_us[place]:,.0f} | not judged |")
    print(f"\n{counted('answered', tally.requests)}\n{counted('casualties of killed stubs', tally.casualties)}")
    print(counted("failures", tally.failures))
    passed = status == 0 and not tally.failures and not growth(before, after)
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
