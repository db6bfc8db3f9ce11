"""Executions that do not end: the log says where they are, and those of replaced versions end with their clients."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pybackend.engine.engine import InferenceEngine
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.instance.executor import LONG_NS
from pybackend.model.model import Model, ModelState
from tests.integration.models.conftest import Run, running_engine
from tests.support.engine import input_tensor
from tests.support.gates import GATE, Gate
from tests.support.model_control import until
from tests.support.repositories import identity_config, write_model

WAITS = (
    GATE
    + """
import asyncio, re

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        return self.work(requests)

    def work(self, requests):
        return self.wait(requests)

"""
)
KINDS = {
    "sleeping": "    def wait(self, requests):\n        pass_gate(self.directory, 'never')",
    # Python's engine for regular expressions lets no other thread run.
    "holding": "    def wait(self, requests):\n        mark(self.directory, 'never.reached')\n        re.match('(a+)+$', 'a' * 60 + 'b')",
    "awaiting": """
    async def execute(self, requests):
        return await self.rest(requests)

    async def rest(self, requests):
        mark(self.directory, 'never.reached')
        await asyncio.Event().wait()
""",
}
PLACES = {
    "sleeping": r"model\.py:\d+ in pass_gate",
    "holding": r"model\.py:\d+ in wait, which calls .+:\d+ in match",
    "awaiting": r"model\.py:\d+ in rest, which calls locks\.py:\d+ in wait",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InferenceEngine, Run, Path]]:
    repository = tmp_path_factory.mktemp("hanging")
    for name, code in KINDS.items():
        write_model(repository, name, WAITS + code, identity_config())
    options = {"explicit": True, "abandoned_limit_s": 3.0, "end_s": 0}
    with running_engine(repository, **options) as (engine, run):
        yield engine, run, repository


def begin(engine: InferenceEngine, name: str) -> PendingRequest:
    """Send a request that is never answered, unless its process dies."""
    request = InferenceRequest(
        model_name=name, id="user-7", inputs=[input_tensor("IN", np.ones(1, np.float32))], requested_outputs=()
    )
    return engine.open(name).submit(request, lambda response: response.release())


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_says_once_where_it_hangs(
    lab: tuple[InferenceEngine, Run, Path], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    engine, run, repository = lab
    model = engine.repository.catalogue.find(kind)
    gate = Gate(repository / kind, "never")

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "has run `execute`" in record.getMessage()]

    async def scenario() -> str:
        begin(engine, kind)
        await until(lambda: gate.arrivals)
        now_ns = time.monotonic_ns()
        model.trim(now_ns)
        for later_ns in (LONG_NS, LONG_NS + 1, 5 * LONG_NS):
            model.trim(now_ns + later_ns)
        await until(said)
        (document,) = await engine.stacks(kind)
        assert (document["instance"], document["version"], document["pid"]) == (
            f"{kind}_0",
            "1",
            model.instances[0].pid,
        )
        assert (document["running"], document["requests"]) == (1, 1)
        assert document["oldest_s"] > 0
        files = {os.path.basename(frame["file"]) for stack in document["stacks"] for frame in stack["frames"]}
        assert "model.py" in files
        return said()[0]

    line = run(scenario())
    assert re.fullmatch(
        rf"instance '{kind}_0' has run `execute` for 1\d s, for 1 request \(id user-7\): it is at {PLACES[kind]}\. "
        rf"`pybackend stack {kind}` shows all its threads",
        line,
    ), line
    assert len(said()) == 1


def test_a_process_that_dies_while_it_is_asked(lab: tuple[InferenceEngine, Run, Path]) -> None:
    engine, run, repository = lab
    write_model(repository, "dies", WAITS + KINDS["holding"], identity_config())

    async def scenario() -> None:
        await engine.control.load("dies")
        instance = engine.repository.catalogue.find("dies").instances[0]
        begin(engine, "dies")
        await until(lambda: Gate(repository / "dies", "never").arrivals)
        asked = [asyncio.create_task(engine.stacks("dies")) for _ in range(2)]
        await asyncio.sleep(0)
        assert instance.pid
        os.kill(instance.pid, 9)
        for (document,) in await asyncio.gather(*asked):
            assert document["stacks"] == []
        await until(lambda: instance.session is not None and engine.repository.catalogue.find("dies").health.is_ready)
        (document,) = await engine.stacks("dies")
        assert document["stacks"]

    run(scenario())


def test_a_replaced_version_ends_with_its_clients(lab: tuple[InferenceEngine, Run, Path]) -> None:
    engine, run, repository = lab
    write_model(repository, "dev", WAITS + KINDS["sleeping"], identity_config())
    gate = Gate(repository / "dev", "never")

    async def replaced() -> tuple[Model, PendingRequest, PendingRequest]:
        """A replaced version with a request that it executes, and one that waits."""
        await engine.control.load("dev")
        old, arrivals = engine.repository.catalogue.find("dev"), gate.arrivals
        running = begin(engine, "dev")
        await until(lambda: gate.arrivals > arrivals)
        waiting = begin(engine, "dev")
        write_model(repository, "dev", f"# {arrivals}\n" + WAITS + KINDS["sleeping"], identity_config())
        await engine.control.load("dev")
        assert old.state is ModelState.UNLOADING
        return old, running, waiting

    async def scenario() -> None:
        old, pending, waiting = await replaced()
        waiting.cancel()
        pid, now_ns = old.instances[0].pid, time.monotonic_ns()
        for seconds in (0, 10, 20):  # its client still waits
            old.trim(now_ns + seconds * 10**9)
        assert old.instances[0].pid == pid
        pending.cancel()
        old.trim(now_ns)
        old.trim(now_ns + 2 * 10**9)
        assert old.instances[0].pid == pid
        old.trim(now_ns + 4 * 10**9)
        await until(lambda: old.state is ModelState.UNAVAILABLE)
        assert engine.repository.catalogue.find("dev").health.is_ready
        # One for which requests wait is restarted.
        old, pending, waiting = await replaced()
        pid = old.instances[0].pid
        pending.cancel()
        for seconds in (0, 4):
            old.trim(now_ns + seconds * 10**9)
        await until(lambda: old.instances[0].pid not in {pid, None} and not old.pending_count)
        waiting.cancel()
        for seconds in (0, 4):
            old.trim(now_ns + seconds * 10**9)
        await until(lambda: old.state is ModelState.UNAVAILABLE)
        # The version that serves is not touched.
        new, arrivals = engine.repository.catalogue.find("dev"), gate.arrivals
        pending = begin(engine, "dev")
        await until(lambda: gate.arrivals > arrivals)
        pending.cancel()
        for seconds in (0, 10, 20):
            new.trim(now_ns + seconds * 10**9)
        assert new.instances[0].pid is not None
        assert new.health.is_ready

    run(scenario())
