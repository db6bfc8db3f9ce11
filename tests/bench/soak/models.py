"""The models of the soak: small, and each for one way through the server."""

import json
from pathlib import Path
from typing import Any

from tests.support.ensembles import step, write_ensemble
from tests.support.repositories import IDENTITY, copy_model, identity_config, write_model
from tests.support.server import ServerProcess

SUM = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            value = int(request.inputs()[0].as_numpy().ravel()[0])
            total = value + (0 if request.flags() & 1 else self.sums[key])
            self.sums[key] = total
            if request.flags() & 2:
                del self.sums[key]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([total], np.int32))]))
        return responses
"""
"""Answers each request of a sequence with the sum of its numbers so far."""

SLOW = """
import time

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            for _ in range(100):
                if request.is_cancelled():
                    break
                time.sleep(0.002)
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
"""Takes 200 ms, unless its client leaves."""


def write_models(repository: Path) -> None:
    write_model(repository, "identity", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    write_model(
        repository,
        "batched",
        IDENTITY,
        identity_config("TYPE_FP32", "[ -1 ]", "max_batch_size: 16 dynamic_batching { }"),
    )
    for name in ("double", "repeat", "countdown_to", "add_squares"):
        copy_model(repository, name)
    doubles = [step("double", {"IN": "IN"}, {"OUT": "x"}), step("double", {"IN": "x"}, {"OUT": "OUT"})]
    write_ensemble(repository, "quadruple", doubles)
    sequences = "sequence_batching { max_sequence_idle_microseconds: 5000000 }"
    numbers = identity_config("TYPE_INT32", "[ 1 ]", sequences)
    write_model(repository, "sum", SUM, numbers + "instance_group { count: 2 kind: KIND_CPU }")
    write_model(
        repository,
        "slow",
        SLOW.replace("request.inputs()", "[pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]"),
        identity_config(),
    )


RELOADED = ("identity", "batched", "double", "repeat", "add_squares", "quadruple")
"""The models that are loaded again while they are used."""


def reload(server: ServerProcess, model: str, number: int) -> None:
    """Load a model with a configuration that has changed, while clients use it."""
    config: dict[str, Any] = server.get(f"/v2/models/{model}/config").json
    config.setdefault("parameters", {})["reload"] = {"string_value": str(number)}
    body = json.dumps({"parameters": {"config": json.dumps(config)}})
    reply = server.request("POST", f"/v2/repository/models/{model}/load", body.encode())
    assert reply.status == 200, reply.error
