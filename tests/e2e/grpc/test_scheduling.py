"""tritonclient's gRPC clients, blocking and asyncio, with all that happens between a request and its model."""

import json
import time
from contextlib import ExitStack

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.grpc.clients import Asyncio, Blocking, Listener, infer, parameters, tensor
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import copy_model, tensors, write_model
from tests.support.served import served

TELLING = (
    GATE
    + """
import json

class TritonPythonModel:
    def initialize(self, args):
        self.directory, self.sums, self.executions = args["model_repository"], {}, 0

    def execute(self, requests):
        self.executions += 1
        ids = [request.request_id() for request in requests]
        if ids[0].startswith("hold"):
            pass_gate(self.directory, ids[0])
        return [self.answer(request, ids) for request in requests]

    def answer(self, request, ids):
        key, value = request.correlation_id(), pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        self.sums[key] = float(value.sum()) + (0 if request.flags() & 1 else self.sums.get(key, 0))
        told = {"batch": ids, "key": key, "sum": self.sums[key], "execution": self.executions}
        text = np.array([json.dumps(told).encode()], object).reshape(value.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])
"""
)
"""Waits at the gate of its first request's id if that holds it; tells each request its batch, its sequence and their
sum."""

ONE_BY_ONE = (
    f"max_batch_size: 1 input [ {tensors(IN=('TYPE_FP32', [1]))} ] output [ {tensors(OUT=('TYPE_STRING', [1]))} ]"
)
MANY = ONE_BY_ONE.replace("size: 1", "size: 4")
CPU = "instance_group { count: 1 kind: KIND_CPU }"
LONG = "max_sequence_idle_microseconds: 60000000"
CORRID = 'control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }'
MODELS = {
    "batching": f"{MANY} dynamic_batching {{ }}",
    "priorities": f"{ONE_BY_ONE} dynamic_batching {{ priority_levels: 3 default_priority_level: 2 }}",
    "impatient": f"""{ONE_BY_ONE} dynamic_batching {{ default_queue_policy {{
        default_timeout_microseconds: 60000000 allow_timeout_override: true }} }}""",
    "short_queue": f"{ONE_BY_ONE} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}",
    "cached": f"{ONE_BY_ONE} response_cache {{ enable: true }}",
    "direct": f"{MANY} sequence_batching {{ {LONG} direct {{ }} {CORRID % 'UINT64'} }}",
    "oldest": f"{MANY} sequence_batching {{ {LONG} oldest {{ max_candidate_sequences: 4 }} {CORRID % 'STRING'} }}",
}


@served(flags=("--cache-config=local,size=1000000",))
def server(repository):
    for name, text in MODELS.items():
        write_model(repository, name, TELLING, f'backend: "python" {text} {CPU}')
    for name in ("add_squares", "add_squares_async", "countdown_to", "double", "repeat"):
        copy_model(repository, name)
    twice = [step("double", {"IN": "IN"}, {"OUT": "x"}), step("double", {"IN": "x"}, {"OUT": "OUT"})]
    write_ensemble(repository, "twice", twice)
    write_ensemble(repository, "repeated", [step("repeat", {"IN": "IN"}, {"OUT": "OUT"})])


@pytest.fixture(scope="module", params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def client(request, server):
    made = request.param(server.grpc_url)
    yield made
    made.close()


def one(value=1.0):
    return [tensor("IN", np.array([[value]], np.float32))]


def flat(*values):
    return [tensor("IN", np.array(values, np.float32))]


def end(client, last):
    """The empty response at the end of a stream, from a client that can ask for it."""
    return [last] if client.asks_for_empty_final else []


def told(result):
    return json.loads(result.as_numpy("OUT").ravel()[0])


class Queue:
    """A model whose instance one request holds, while others queue up."""

    def __init__(self, server, client, model, stack):
        self._server, self._client, self._model = server, client, model
        held = f"hold{time.monotonic_ns()}"
        self._gate = Gate(server.repository / model, held)
        stack.callback(self._gate.open)  # else a test that fails would keep the server from ending
        self._holder = client.start(model, one(), request_id=held)
        self._gate.wait_reached()

    def add(self, request_id, pending, **options):
        """Send a request that has to wait; returns once so many wait."""
        future = self._client.start(self._model, one(), request_id=request_id, **options)
        sample = f'nv_inference_pending_request_count{{model="{self._model}",version="1"}}'
        wait_until(lambda: self._server.metrics()[sample] == pending, f"{sample} never became {pending}")
        return future

    def open(self):
        self._gate.open()
        self._holder.result(60)


@pytest.fixture
def queue(server, client):
    with ExitStack() as stack:
        yield lambda model: Queue(server, client, model, stack)


def test_requests_that_wait_are_executed_together(queue):
    held = queue("batching")
    waiting = [held.add(name, count) for count, name in enumerate("abcd", start=1)]
    held.open()
    assert [told(future.result(60))["batch"] for future in waiting] == [list("abcd")] * 4


def test_a_higher_priority_is_executed_first(queue):
    held = queue("priorities")
    waiting = [held.add(str(level), count, priority=level) for count, level in enumerate((3, 0, 1), start=1)]
    held.open()
    last, usual, first = (told(future.result(60))["execution"] for future in waiting)
    assert first < usual < last


def test_the_timeout_of_a_request_ends_its_wait(queue):
    held = queue("impatient")
    waiting = held.add("late", 1, timeout=60_000_000)
    with pytest.raises(InferenceServerException) as caught:
        held._client.start("impatient", one(), request_id="early", timeout=1000).result(60)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert caught.value.message() == "[request id: early] Request timeout expired"
    held.open()
    assert told(waiting.result(60))["batch"] == ["late"]


def test_the_deadline_of_a_client_ends_its_wait(queue, client):
    held = queue("priorities")
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.call("infer", "priorities", one(), client_timeout=0.2)
    held.add("next", 1)  # the first one waits no longer
    held.open()


def test_a_full_queue(queue):
    held = queue("short_queue")
    waiting = held.add("a", 1)
    with pytest.raises(InferenceServerException) as caught:
        held._client.start("short_queue", one(), request_id="b").result(60)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert caught.value.message().startswith("[request id: b] Exceeds maximum queue size")
    held.open()
    assert told(waiting.result(60))["batch"] == ["a"]


def test_the_response_cache(client):
    value = hash(type(client).__name__) % 1000
    first, again = (infer(client, "cached", one(value), request_id=name) for name in "ab")
    assert told(first) == told(again)
    assert [result.get_response().id for result in (first, again)] == ["a", "b"]
    other = infer(client, "cached", one(value + 0.5))
    assert told(other)["execution"] == told(first)["execution"] + 1
    (streamed,) = client.stream([{"model_name": "cached", "inputs": one(value), "request_id": "c"}])
    assert (told(streamed), streamed.get_response().id) == (told(first), "c")


def test_ensembles(client):
    assert infer(client, "twice", flat(1, 2)).as_numpy("OUT").tolist() == [4, 8]
    answers = client.stream([{"model_name": "twice", "inputs": flat(number)} for number in range(5)])
    assert [answer.as_numpy("OUT").tolist() for answer in answers] == [[4.0 * number] for number in range(5)]


def test_an_ensemble_with_a_decoupled_part(client):
    answers = client.stream([{"model_name": "repeated", "inputs": flat(3), "enable_empty_final_response": True}])
    parts = [None if answer.as_numpy("OUT") is None else answer.as_numpy("OUT").tolist() for answer in answers]
    assert parts == [[0], [1], [2], *end(client, None)]
    with pytest.raises(InferenceServerException, match="decoupled"):
        infer(client, "repeated", flat(3))


@pytest.mark.parametrize(("model", "total"), [("add_squares", 16), ("add_squares_async", 16 + 25)])
def test_models_that_call_others(client, model, total):
    numbers = [tensor("IN", np.array([4], np.int32), "INT32")]
    assert infer(client, model, numbers).as_numpy("SUM").tolist() == [total]
    (streamed,) = client.stream([{"model_name": model, "inputs": numbers}])
    assert streamed.as_numpy("SUM").tolist() == [total]


@pytest.mark.parametrize("streamed", [False, True], ids=["infer", "stream"])
@pytest.mark.parametrize(("model", "keys"), [("direct", (7, 8)), ("oldest", ("a", "ü b"))])
def test_sequences(client, model, keys, streamed):
    """Two sequences, their requests by turns: each has its own sum."""
    requests = [
        {
            "model_name": model,
            "inputs": one(number + place),
            "sequence_id": key,
            "sequence_start": number == 0,
            "sequence_end": number == 3,
        }
        for number in range(4)
        for place, key in enumerate(keys)
    ]
    answers = client.stream(requests) if streamed else [client.call("infer", **request) for request in requests]
    for place, key in enumerate(keys):
        own = [told(answer) for answer in answers if told(answer)["key"] == key]
        assert [each["sum"] for each in own] == [
            sum(number + place for number in range(count + 1)) for count in range(4)
        ]


def test_a_sequence_that_did_not_begin(client):
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "direct", one(), sequence_id=99)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    (answer,) = client.stream([{"model_name": "direct", "inputs": one(), "sequence_id": 99}])
    assert answer.message() == caught.value.message()


def test_decoupled_models(client):
    """Several requests, with 0, 2 and 3 responses, on one stream; an error is one of the responses."""
    requests = [
        {
            "model_name": "repeat",
            "inputs": flat(*values),
            "request_id": str(number),
            "enable_empty_final_response": True,
        }
        for number, values in enumerate([(0,), (2,), (3, 1), (2, -1, 1)])
    ]
    seen = {str(number): [] for number in range(4)}
    errors = []
    for answer in client.stream(requests):
        if isinstance(answer, InferenceServerException):
            errors.append(answer.message())
            continue
        values = answer.as_numpy("OUT")
        final = parameters(answer)["triton_final_response"]
        seen[answer.get_response().id].append((None if values is None else values.tolist(), final))
    assert seen == {
        "0": end(client, (None, True)),
        "1": [([0], False), ([1], False), *end(client, (None, True))],
        "2": [([0], False), ([2], False), *end(client, (None, True))],
        "3": [([0], False), ([1], True)],
    }
    assert errors == ["no 1"]


def test_a_stream_ends_with_the_status_of_an_error_where_that_is_asked_for(client):
    answers = client.stream([{"model_name": "repeat", "inputs": flat(2, 0)}], headers={"triton_grpc_error": "true"})
    assert [(type(answer), answer.status()) for answer in answers] == [
        (InferenceServerException, "StatusCode.NOT_FOUND")
    ]


def test_a_stream_that_is_cancelled_leaves_the_queue(server, queue):
    held = queue("priorities")
    with Listener(server.grpc_url) as stream:
        stream.send("twice", flat(1))
        stream.take(1)
        for _ in range(5):
            stream.send("priorities", one())
        sample = 'nv_inference_pending_request_count{model="priorities",version="1"}'
        wait_until(lambda: server.metrics()[sample] == 5, "they do not wait")
    wait_until(lambda: server.metrics()[sample] == 0, "they wait for ever")
    held.open()
