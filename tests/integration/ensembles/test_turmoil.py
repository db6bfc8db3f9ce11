"""Ensembles while everything happens at once: processes die, parts are replaced and unloaded, clients pause and leave.

Each request is answered once, rightly or with an error, and nothing is held in the end.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.model.cache.response_cache import LocalCache
from tests.integration.ensembles.conftest import passing
from tests.integration.models.conftest import running_engine
from tests.support.engine import output_array
from tests.support.ensembles import FP32, nothing_held, request_of, step, write_ensemble, write_mix
from tests.support.repositories import tensors, write_model
from tests.support.streams import DECOUPLED, Stream

DEADLINE_S = 60
CLIENTS, REQUESTS = 8, 12
SIZES = [1, 100, 5_000, 400_000]

BURST = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            for number in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + np.float32(number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

EXPECTED = {
    "once": lambda x: [3 * x + 2],
    "around": lambda x: [5 * x + 2],
    "stream": lambda x: [x + i for i in range(3)],
    "streams": lambda x: [3 * x + 2 + i + j for i in range(3) for j in range(3)],
}
"""By ensemble: the values of its responses to a tensor full of one value."""


def write_all(repository: Path) -> None:
    write_mix(repository, count=2)
    queue = "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 6 } }"
    write_mix(repository, "batching", extra=queue)
    io = f"input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=FP32)} ]"
    write_model(repository, "burst", BURST, f'backend: "python" {io} {DECOUPLED}')
    cached = "response_cache { enable: true }"
    write_ensemble(repository, "once", [step("mix", {"A": "IN"}, {"S": "x", "D": "y"}), step("batching", {"A": "x", "B": "y"}, {"S": "OUT"})])  # fmt: skip
    write_ensemble(repository, "around", [passing("once", "IN", "x"), step("mix", {"A": "x", "B": "IN"}, {"S": "OUT"})], extra=cached)  # fmt: skip
    write_ensemble(repository, "stream", [passing("burst", "IN", "x"), step("mix", {"A": "x"}, {"S": "OUT"})], limit=2)
    write_ensemble(repository, "streams", [passing("once", "IN", "x"), passing("stream", "x", "y"), passing("burst", "y", "OUT")])  # fmt: skip


class Turmoil:
    """Clients, and what disturbs them."""

    def __init__(self, engine: InferenceEngine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.answered: Counter[str] = Counter()
        self.is_over = False

    async def client(self) -> None:
        answers = 0
        while answers < REQUESTS:
            name = self.random.choice(list(EXPECTED))
            value, size = self.random.randrange(3), self.random.choice(SIZES)
            try:
                error = await self._ask(name, np.full(size, value, np.float32))
            except InferenceError:  # it was not taken
                await asyncio.sleep(0.02)
            else:
                answers += 1
                self.answered["result" if error is None else "error"] += 1

    async def _ask(self, name: str, array: np.ndarray) -> InferenceError | None:
        """Send a request, and leave or pause now and then; what has come must be right, as far as it goes."""
        ended: asyncio.Future[InferenceError | None] = asyncio.get_running_loop().create_future()
        values: list[float] = []
        kept: list[InferenceResponse] = []

        def on_response(response: InferenceResponse) -> None:
            if response.error is None and not response.empty:
                out = output_array(response, "OUT")
                assert out.shape == array.shape
                assert (out == out[0]).all()
                values.append(float(out[0]))
            kept.append(response)  # for a while
            if response.final:
                ended.set_result(response.error)  # which a second answer would break

        pending = self.engine.submit(
            self.engine.repository.catalogue.find(name), request_of(name, {"IN": array}), on_response
        )
        choice = self.random.random()
        if choice < 0.4:
            pending.pause()
            await asyncio.sleep(0.1 * choice)
            pending.resume()
            if choice < 0.2:
                pending.cancel()
        async with asyncio.timeout(DEADLINE_S):
            error = await ended
        for response in kept:
            response.release()
        expected = EXPECTED[name](float(array[0]))
        assert values == expected[: len(values)]
        assert error is not None or choice < 0.2 or values == expected
        return error

    async def killer(self) -> None:
        """Whenever some more requests are answered, a process dies."""
        before = 0
        while not self.is_over:
            await asyncio.sleep(0.01)
            if self.answered.total() >= before + 10:
                before = self.answered.total()
                pids = [
                    each.pid
                    for model in self.engine.repository.catalogue.models()
                    for each in model.instances
                    if each.pid
                ]
                if pids:
                    os.kill(self.random.choice(pids), signal.SIGKILL)

    async def loader(self, repository: Path) -> None:
        """Parts and ensembles are replaced, and now and then they are away for a while."""
        while not self.is_over:
            name = self.random.choice(["mix", "batching", "burst", "once", "around"])
            os.utime(repository / name / "config.pbtxt")
            try:
                if self.random.random() < 0.3:
                    await self.engine.control.unload(name)
                await self.engine.control.load(name)
            except InferenceError:
                pass  # a process was killed meanwhile
            await asyncio.sleep(0.2)


@pytest.mark.thorough
@pytest.mark.spec("srv-R17", "srv-R18", "srv-R19")
@pytest.mark.parametrize("seed", [1, 2])
def test_each_request_is_answered_once(tmp_path: Path, seed: int) -> None:
    write_all(tmp_path)
    with running_engine(tmp_path, explicit=True, cache=LocalCache(20_000_000)) as (engine, run):
        turmoil = Turmoil(engine, seed)

        async def rage() -> None:
            disturbing = [asyncio.ensure_future(turmoil.killer()), asyncio.ensure_future(turmoil.loader(tmp_path))]
            await asyncio.gather(*(turmoil.client() for _ in range(CLIENTS)))
            turmoil.is_over = True
            await asyncio.gather(*disturbing)

        async def calm() -> None:
            for name in ("mix", "batching", "burst", *EXPECTED):
                os.utime(tmp_path / name / "config.pbtxt")
                await engine.control.load(name)
            await nothing_held(engine)
            for name, values in EXPECTED.items():
                stream = Stream(engine, name, {"IN": np.ones(1, np.float32)}, keep=True)
                responses = await stream.rest()
                found = [output_array(each, "OUT").tolist() for each in responses if not each.empty]
                assert found == [[value] for value in values(1.0)]
                for each in responses:
                    each.release()
            await nothing_held(engine)

        run(rage())
        run(calm())
        assert turmoil.answered.total() == CLIENTS * REQUESTS
        assert turmoil.answered["result"] > 0
