"""A bound for the bytes of requests that wait, whichever models they are for."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.gates import GATE, Gate
from tests.support.inference import infer
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

GATED = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests
        ]
"""
)

FIRST = np.zeros(1000, np.float32)
LARGE = np.zeros(1_000_000, np.float32)


@pytest.mark.spec("srv-S20")
def test_more_than_the_limit_is_refused_at_once(tmp_path):
    gate = Gate(write_model(tmp_path, "gated", GATED, identity_config()), "execute")
    write_model(tmp_path, "other", IDENTITY, identity_config())
    with (
        serving(tmp_path, flags=("--max-queued-bytes=6000000",)) as server,
        ThreadPoolExecutor(1) as threads,
        gate.holding(lambda: infer(server, "gated", {"IN": FIRST})) as running,
    ):
        waiting = threads.submit(infer, server, "gated", {"IN": LARGE})
        pending = 'nv_inference_pending_request_count{model="gated",version="1"}'
        while server.metrics()[pending] < 1:
            assert not waiting.done()
        for model in ("gated", "other"):
            refused = infer(server, model, {"IN": LARGE}, id="7")
            assert refused.status == 503
            assert refused.error == (
                "[request id: 7] the server is overloaded: it holds 4004000 bytes of waiting and running requests, "
                "and 4000000 more would exceed its limit of 6000000 (--max-queued-bytes). Try again later"
            )
        assert infer(server, "other", {"IN": FIRST}).status == 200  # there is room for a small one
        gate.open()
        assert running.result().status == waiting.result().status == 200
        assert infer(server, "other", {"IN": LARGE}).status == 200
