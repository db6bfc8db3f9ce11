"""The stages between a model and the senders of its requests, all at once and with real stubs."""

import asyncio
import gc
import logging
from pathlib import Path

import numpy as np
import pytest

from pybackend.errors import ErrorCode
from pybackend.inference import pending
from pybackend.inference.pending import PendingRequest, QueuedBytes
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.model.cache.response_cache import LocalCache
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.ensembles import write_ensemble
from tests.support.gates import GATE, Gate
from tests.support.model_control import until
from tests.support.repositories import IDENTITY, identity_config, write_model

MODEL = f"""{GATE}
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if value[0, 0] == 1:
            pass_gate(self.directory, "first")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
"""
CONFIG = """
backend: "python"
max_batch_size: 1
dynamic_batching { preserve_ordering: true }
response_cache { enable: true }
instance_group { count: 2 kind: KIND_CPU }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


class Senders:
    """Requests of one number each, and what came back, in the order in which it came."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.answers: list[tuple[int, object]] = []

    def send(self, number: int, receive=None) -> PendingRequest:
        def remember(response: InferenceResponse) -> None:
            what = response.error.code if response.error is not None else float(output_array(response, "OUT")[0, 0])
            self.answers.append((number, what))
            response.release()

        request = InferenceRequest("m", inputs=[input_tensor("IN", np.array([[number]], np.float32))])
        return self._engine.open("m").submit(request, receive or remember)


def pending_requests() -> list[PendingRequest]:
    return [each for each in gc.get_objects() if isinstance(each, PendingRequest)]


def test_stages_of_a_model_work_together_and_keep_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    of_other_tests = pending_requests()
    caplog.set_level(
        logging.CRITICAL, pending.__name__
    )  # what is logged keeps requests, by the frames of its traceback
    failed = []

    def fail(response: InferenceResponse) -> None:
        failed.append(response)
        raise ValueError("the receiver's own fault")

    async def main() -> None:
        queued, cache = QueuedBytes(1000), LocalCache(1_000_000)
        async with engine_on(tmp_path, cache=cache, queued_bytes=queued) as engine:
            model, gate, senders = engine.repository.catalogue.find("m"), Gate(tmp_path / "m", "first"), Senders(engine)
            senders.send(1)
            await until(lambda: gate.arrivals)
            senders.send(2)
            senders.send(3, fail)
            senders.send(4).cancel()
            senders.send(5)
            await until(lambda: model.statistics.execution_count == 3)
            assert (senders.answers, failed, queued.used_bytes) == ([], [], 5 * 4)  # they wait for the first
            assert cache.figures.entries == 0
            gate.open()
            await until(lambda: len(senders.answers) == 4)
            assert senders.answers == [(1, 1.0), (2, 2.0), (4, ErrorCode.CANCELLED), (5, 5.0)]
            assert (len(failed), queued.used_bytes, cache.figures.entries) == (1, 0, 4)

            senders.send(3)  # it was executed and kept, although its receiver failed
            await until(lambda: len(senders.answers) == 5)
            assert senders.answers[-1] == (3, 3.0)
            assert (queued.used_bytes, cache.figures.hits, model.statistics.execution_count) == (0, 1, 4)
            gc.collect()
            assert {id(each) for each in pending_requests()} <= {id(each) for each in of_other_tests}

    write_model(tmp_path, "m", MODEL, CONFIG)
    asyncio.run(main())


@pytest.mark.parametrize("extra", ["", "response_cache { enable: true }"], ids=["executed", "cached"])
def test_an_ensembles_requests_count_once_and_until_they_are_answered(tmp_path: Path, extra: str) -> None:
    """Those that it sends to its parts do not count, and a hit in the cache ends as an execution does."""

    async def main() -> None:
        queued = QueuedBytes(1000)
        async with engine_on(tmp_path, cache=LocalCache(1_000_000), queued_bytes=queued) as engine:
            gate, used_bytes = Gate(tmp_path / "m", "first"), []

            def receive(response: InferenceResponse) -> None:
                used_bytes.append(queued.used_bytes)
                response.release()

            for count in (1, 2):
                request = InferenceRequest("e", inputs=[input_tensor("IN", np.array([[1]], np.float32))])
                engine.open("e").submit(request, receive)
                assert queued.used_bytes == 4
                if count == 1:
                    await until(lambda: gate.arrivals)
                    assert queued.used_bytes == 4
                    gate.open()
                await until(lambda count=count: len(used_bytes) == count)
            assert used_bytes == [0, 0]

    write_model(tmp_path, "m", MODEL, CONFIG)
    fp32 = 'name: "{}" data_type: TYPE_FP32 dims: [ 1 ]'
    write_ensemble(
        tmp_path,
        "e",
        [("m", {"IN": "IN"}, {"OUT": "OUT"})],
        inputs=f"{{ {fp32.format('IN')} }}",
        outputs=f"{{ {fp32.format('OUT')} }}",
        extra=f"max_batch_size: 1 {extra}",
    )
    asyncio.run(main())


@pytest.mark.parametrize("extra", ["", "max_batch_size: 1 dynamic_batching {}"], ids=["plain", "batcher"])
def test_what_comes_next_leaves_before_an_answer_is_written(tmp_path: Path, extra: str) -> None:
    """So the model's process does not wait while the server writes."""
    dims = "[ 1 ]" if extra else "[ -1 ]"
    write_model(tmp_path, "identity", IDENTITY, identity_config(dims=dims, extra=extra))
    waiting: list[int] = []

    async def scenario() -> None:
        async with engine_on(tmp_path) as engine, asyncio.timeout(60):
            model = engine.repository.catalogue.find("identity")

            def on_response(response: InferenceResponse) -> None:
                waiting.append(model.pending_count)
                response.release()

            for number in range(3):
                tensor = input_tensor("IN", np.full((1, 1) if extra else 1, number, np.float32))
                engine.open("identity").submit(InferenceRequest("identity", inputs=[tensor]), on_response)
            await until(lambda: len(waiting) == 3)

    asyncio.run(scenario())
    assert waiting == [1, 0, 0]
