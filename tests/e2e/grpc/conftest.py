"""One server for the tests of gRPC, with models that answer, stream, wait and fail."""

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as client

from tests.support.repositories import IDENTITY, copy_model, identity_config, tensors, write_model
from tests.support.server import ServerProcess, serving
from tests.support.streams import write_streams

PATIENT = """
import os
import threading


class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            open(self.place + "/began", "w").close()
            while not request.is_cancelled():
                threading.Event().wait(0.005)
            open(self.place + "/cancelled", "w").close()
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
FAILING = """
CODES = ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            code = CODES[int(request.inputs()[0].as_numpy()[0])]
            error = pb_utils.TritonError("it is %s: 100 %%, \\u00fc" % code, getattr(pb_utils.TritonError, code))
            answers.append(pb_utils.InferenceResponse(error=error))
        return answers
"""
FLOOD = """
class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for count in range(int(request.inputs()[0].as_numpy()[0])):
                if request.is_cancelled():
                    open(self.place + "/cancelled", "w").close()
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(25_000, count, np.float32))]))
                with open(self.place + "/count", "w") as file:
                    file.write(str(count + 1))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
OFF = 'parameters { key: "SANDBOX" value: { string_value: "off" } }'
ONE = f"input [ {tensors(IN=('TYPE_FP32', [1]))} ] output [ {tensors(OUT=('TYPE_FP32', [-1]))} ]"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server; ``server.repository`` is where its models lie."""
    repository = tmp_path_factory.mktemp("grpc")
    for name in ("identity", "other"):
        write_model(repository, name, IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    write_model(repository, "texts", IDENTITY, identity_config("TYPE_STRING", "[ -1 ]"))
    write_model(repository, "batched", IDENTITY, identity_config("TYPE_INT32", "[ 2 ]", "max_batch_size: 8"))
    copy_model(repository, "repeat")
    write_model(repository, "patient", PATIENT, f'backend: "python" {ONE} {OFF}')
    write_model(repository, "failing", FAILING, f'backend: "python" {ONE}')
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "flood", FLOOD, f'backend: "python" {ONE} {OFF} {decoupled}')
    write_streams(repository, "streams", f"max_batch_size: 4 {decoupled}")
    with serving(repository) as process:
        process.repository = repository  # type: ignore[attr-defined]
        yield process


@pytest.fixture
def grpc_client(server: ServerProcess) -> Iterator[client.InferenceServerClient]:
    with client.InferenceServerClient(server.grpc_url) as made:
        yield made


def given(array: np.ndarray, name: str = "IN", datatype: str = "FP32") -> list[client.InferInput]:
    tensor = client.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return [tensor]


def floats(*values: float) -> list[client.InferInput]:
    return given(np.array(values, np.float32))
