"""Requests that a model has executed more than once, in both modes, as clients and models see it."""

import json

import numpy as np
import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, Gate
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

TENSORS = f"input [ {tensors(IN=('TYPE_INT32', [-1]))} ] output [ {tensors(OUT=('TYPE_STRING', [1]))} ]"
ITERATIVE = """sequence_batching { iterative_sequence: true control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ] %s }"""

COUNTING = (
    GATE
    + """
import json

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        self.seen = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            key = request.correlation_id()
            steps = self.seen.setdefault(key, [])
            total = int(inputs["IN"].sum())
            steps.append([request.flags(), int(inputs["START"].ravel()[0]), total, len(requests)])
            if request.request_id().startswith("hold"):
                pass_gate(self.directory, request.request_id())
            wanted = int(inputs["IN"].ravel()[0])
            if wanted == -1:
                request.set_release_flags(AGAIN)
                raise ValueError("no more")
            if wanted == -2:
                request.set_release_flags(AGAIN)
                responses.append(pb_utils.InferenceResponse([]))
            elif len(steps) < wanted:
                request.set_release_flags(AGAIN)
                responses.append(None)
            else:
                told = {"steps": self.seen.pop(key), "same_id": key == int(inputs["CORRID"].ravel()[0]), "id": key}
                out = np.array([json.dumps(told).encode()], object).reshape([1] * inputs["START"].ndim)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
)
"""Has a request executed as often as its first number says."""

STREAMING = """
import asyncio

class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            key, sender = request.correlation_id(), request.get_response_sender()
            left = self.left.setdefault(key, int(request.inputs()[0].as_numpy().ravel()[0]))
            word = np.array([f"{left}:{request.flags()}".encode()], object)
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", word)])
            if left > 1:
                self.left[key] = left - 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(response)
            else:
                del self.left[key]
                sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COROUTINE = STREAMING.replace("def execute", "async def execute").replace(
    "key, sender =", "await asyncio.sleep(0)\n            key, sender ="
)
CALLING = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            name = request.parameters()[2:-2].split('": "')[1]
            call = pb_utils.InferenceRequest(
                model_name=name, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", request.inputs()[0].as_numpy())]
            )
            words = []
            for response in call.exec(decoupled=True):
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                words += [w for t in response.output_tensors() for w in t.as_numpy().tolist()]
            out = np.array([b" ".join(words)], object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
"""
DECOUPLED = "sequence_batching { iterative_sequence: true } model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    repository = tmp_path_factory.mktemp("iterative")

    def write(name, code, config):
        return write_model(repository, name, code, f'backend: "python" {TENSORS} {config}')

    return {
        "direct": write("direct", COUNTING, ITERATIVE % ""),
        "oldest": write("oldest", COUNTING, "max_batch_size: 2 " + ITERATIVE % "oldest { max_candidate_sequences: 4 }"),
        "streaming": write("streaming", STREAMING, DECOUPLED),
        "coroutine": write("coroutine", COROUTINE, DECOUPLED),
        "calling": write("calling", CALLING, ""),
    }


@pytest.fixture(scope="module")
def server(directories):
    with serving(directories["direct"].parent) as server:
        yield server


def count(server, model, numbers, **members):
    array = np.array(numbers, np.int32)
    answer = infer(server, model, {"IN": array if model == "direct" else array[None]}, **members)
    return json.loads(answer["OUT"].ravel()[0]) if answer.status == 200 else answer


@pytest.mark.spec("srv-S18", "pb-R01")
@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_a_request_is_executed_until_the_model_releases_it(server, model):
    told = count(server, model, [4, 10])
    assert told["steps"] == [[1, 1, 14, 1]] + [[0, 0, 14, 1]] * 3, "flags are cleared, inputs stay"
    assert told["same_id"]
    assert told["id"], "the server gives each request an id"
    assert count(server, model, [1])["id"] != told["id"]
    assert count(server, model, [2], parameters={"sequence_id": 99})["id"] == 99


@pytest.mark.spec("srv-S18")
@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_large_inputs_are_there_every_time_and_go_back_in_the_end(server, model):
    numbers = [5, *range(100_000)]
    total = int(np.array(numbers, np.int32).sum())
    for _ in range(8):
        assert [step[2] for step in count(server, model, numbers)["steps"]] == [total] * 5
    metrics = server.metrics()
    held = [value for name, value in metrics.items() if "input_memory" in name and f'"{model}"' in name]
    assert all(value < 16 * 1024 * 1024 for value in held)


@pytest.mark.spec("srv-S18")
def test_requests_in_different_iterations_share_batches(server, directories):
    gate = Gate(directories["oldest"], "hold1")
    with connected(server.port) as first, connected(server.port) as second:
        for connection, request_id in ((first, "hold1"), (second, "")):
            tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [6]}
            connection.send(
                post("/v2/models/oldest/infer", json.dumps({"id": request_id, "inputs": [tensor]}).encode())
            )
            if request_id:
                gate.wait_reached()
        server.get("/v2/health/live")
        gate.open()
        steps = [
            json.loads(connection.reply().json["outputs"][0]["data"][0])["steps"] for connection in (first, second)
        ]
    assert [len(each) for each in steps] == [6, 6]
    assert [step[3] for step in steps[0]][1:4] == [2, 2, 2]


def test_an_error_of_the_batch_ends_the_request(server):
    answer = count(server, "direct", [-1])
    assert answer.status == 500
    assert "ValueError: no more" in answer.error


@pytest.mark.spec("pb-R03")
def test_a_response_for_a_request_that_is_to_be_executed_again(server):
    answer = count(server, "direct", [-2])
    assert (answer.status, answer.error) == (
        500,
        "Failed to process the request(s) for model 'direct_0', message: Expected a None object in the execute function "
        "return list for reschduled request, found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
    )
    answer = infer(server, "calling", {"IN": np.array([-2], np.int32)}, parameters={"model": "direct"})
    assert "Expected a None object in the execute function return list for reschduled request" in answer.error


@pytest.mark.spec("srv-S18", "pb-R01")
@pytest.mark.parametrize("model", ["streaming", "coroutine"])
def test_one_stream_of_responses_from_many_executions(server, model):
    answer = infer(server, "calling", {"IN": np.array([4], np.int32)}, parameters={"model": model})
    assert answer["OUT"][0] == b"4:1 3:0 2:0 1:0"


def test_a_client_that_leaves_between_two_executions(server, directories):
    gate = Gate(directories["direct"], "hold2")
    with connected(server.port) as connection:
        tensor = {"name": "IN", "datatype": "INT32", "shape": [20_000], "data": [1_000_000_000] + [0] * 19_999}
        connection.send(post("/v2/models/direct/infer", json.dumps({"id": "hold2", "inputs": [tensor]}).encode()))
        gate.wait_reached()
    server.get("/v2/health/live")
    gate.open()
    assert len(count(server, "direct", [2])["steps"]) == 2, "the slot is free again"
