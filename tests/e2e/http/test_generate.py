"""The generate extension: flat JSON objects in and out, as one object or as server-sent events."""

import json

import pytest

from tests.support.connection import connected, post
from tests.support.gates import GATE, wait_until
from tests.support.repositories import model_code, tensors, write_model
from tests.support.served import served

TELLS = """
import json


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            told = {tensor.name(): [list(tensor.shape()), np.char.decode(tensor.as_numpy().astype(bytes)).ravel().tolist()
                    if tensor.as_numpy().dtype == object else tensor.as_numpy().ravel().tolist()]
                    for tensor in request.inputs()}
            seen = {"inputs": told, "parameters": json.loads(request.parameters()), "id": request.request_id()}
            seen = np.array([json.dumps(seen).encode()], object)
            pair = np.array([1.5, float("nan")], np.float32)
            answers.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor("seen", seen), pb_utils.Tensor("PAIR", pair)], parameters={"Ready": True, "n": 3}))
        return answers
"""
CONFIG = f"""
backend: "python"
input [ {tensors(text_input=("TYPE_STRING", [1]))} ]
input {{ name: "numbers" data_type: TYPE_FP32 dims: [ -1, 2 ] optional: true }}
input {{ name: "flag" data_type: TYPE_BOOL dims: 1 optional: true }}
output [ {tensors(seen=("TYPE_STRING", [1]), PAIR=("TYPE_FP32", [2]))} ]
"""
BATCHED = f"""
backend: "python"
max_batch_size: 8
input [ {tensors(rows=("TYPE_INT32", [2]))} ]
output [ {tensors(seen=("TYPE_STRING", [1]), PAIR=("TYPE_FP32", [2]))} ]
"""
PLANE = f"""
backend: "python"
input [ {tensors(plane=("TYPE_INT32", [-1, -1]))} ]
output [ {tensors(seen=("TYPE_STRING", [1]), PAIR=("TYPE_FP32", [2]))} ]
"""
NESTED = f"""
backend: "python"
input [ {tensors(parameters=("TYPE_INT32", [1]))} ]
output [ {tensors(seen=("TYPE_STRING", [1]), PAIR=("TYPE_FP32", [2]))} ]
"""
STREAM = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
model_transaction_policy {{ decoupled: true }}
"""
PATIENT = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.gate = args["model_repository"] + "/gate"

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = 0
            while not request.is_cancelled():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(20_000, np.float32))]))
                count += 1
                with open(self.gate + ".count", "w") as file:
                    file.write(str(count))
            open(self.gate + ".cancelled", "w").close()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)


@served()
def server(repository):
    write_model(repository, "tells", TELLS, CONFIG)
    write_model(repository, "batched", TELLS, BATCHED)
    write_model(repository, "plane", TELLS, PLANE)
    write_model(repository, "batched_plane", TELLS, PLANE + "max_batch_size: 4")
    write_model(repository, "nested", TELLS, NESTED)
    write_model(repository, "repeat", model_code("repeat"), STREAM)
    write_model(repository, "endless", PATIENT, STREAM + 'parameters { key: "SANDBOX" value: { string_value: "off" } }')


def generate(server, model, document, route="generate", headers=None):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return server.request("POST", f"/v2/models/{model}/{route}", body, headers=headers or {})


def events(reply):
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.body.endswith(b"\n\n")
    parts = reply.body.decode().split("\n\n")[:-1]
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.spec("srv-H33")
def test_members_become_inputs_and_parameters(server):
    document = {
        "id": "17",
        "text_input": "héllo",
        "numbers": [1, 2.5, 3, 4],
        "stream": False,
        "parameters": {"flag": True, "temperature": 0.5, "top_k": 4},
        "stop": "END",
    }
    reply = generate(server, "tells", document)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    told = reply.body.decode()
    # Members are sorted; tensors of one element are scalars; NaN, which a model may compute, is null: browsers read no
    # other JSON.
    answer = json.loads(told)
    assert list(answer) == ["PAIR", "Ready", "id", "model_name", "model_version", "n", "seen"]
    assert answer["PAIR"] == [1.5, None]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("17", "tells", "1")
    assert (answer["Ready"], answer["n"]) == (True, 3)
    seen = json.loads(answer["seen"])
    assert seen["inputs"] == {
        "text_input": [[1], ["héllo"]],
        "numbers": [[2, 2], [1, 2.5, 3, 4]],
        "flag": [[1], [True]],
    }
    assert seen["id"] == "17"
    assert seen["parameters"] == {"id": "17", "stream": False, "temperature": 0.5, "top_k": 4, "stop": "END"}


@pytest.mark.spec("srv-H33")
@pytest.mark.parametrize(("rows", "shape"), [([1, 2], [1, 2]), ([1, 2, 3, 4, 5, 6], [3, 2])])
def test_the_batch_dimension_takes_what_is_left(server, rows, shape):
    seen = json.loads(generate(server, "batched", {"rows": rows}).json["seen"])
    assert seen["inputs"]["rows"] == [shape, rows]


@pytest.mark.spec("srv-H33")
def test_a_version_can_be_named(server):
    reply = server.request("POST", "/v2/models/tells/versions/1/generate", b'{"text_input":"a"}')
    assert reply.json["model_version"] == "1"
    assert server.request("POST", "/v2/models/tells/versions/2/generate", b'{"text_input":"a"}').status == 404


@pytest.mark.spec("srv-H33")
@pytest.mark.parametrize(
    ("model", "name", "value", "shape"),
    [
        ("tells", "numbers", [[1, 2], [3, 4], [5, 6]], [3, 2]),
        ("tells", "numbers", [[1, 2, 3], [4, 5, 6]], [3, 2]),  # as in infer, nesting need not fit the shape
        ("tells", "text_input", [[["a"]]], [1]),
        ("batched", "rows", [[1, 2], [3, 4]], [2, 2]),
        ("plane", "plane", [[1, 2, 3], [4, 5, 6]], [2, 3]),
        ("plane", "plane", [1, 2, 3, 4, 5, 6], [1, 6]),
        ("plane", "plane", [[1] * 1000] * 400, [400, 1000]),  # which is read in slices
        ("batched_plane", "plane", [[1, 2, 3], [4, 5, 6]], [1, 2, 3]),
        ("batched_plane", "plane", [[[1, 2, 3]], [[4, 5, 6]]], [2, 1, 3]),
    ],
)
def test_nested_lists(server, model, name, value, shape):
    document = {"text_input": "a", name: value} if model == "tells" else {name: value}
    seen = json.loads(generate(server, model, document).json["seen"])
    found, elements = seen["inputs"][name]
    assert found == shape
    flat = value
    while isinstance(flat[0], list):
        flat = [element for part in flat for element in part]
    assert elements == flat


WRONG_COUNT = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)
REFUSED = {
    "not JSON": ("tells", b'{"text_input": ', 500, "failed to parse the request JSON buffer: "),
    "a form without files": (
        "repeat",
        b"IN=1",
        500,
        "failed to parse the request JSON buffer: Invalid value. at 0. generate takes a JSON object whose members are the "
        "model's inputs",
    ),
    "no object": ("tells", b"[1]", 500, "Expected a JSON object"),
    "parameters no object": ("tells", {"parameters": 3}, 500, "Expected JSON object for keyword: 'parameters': "),
    "given twice": (
        "tells",
        {"text_input": "a", "parameters": {"text_input": "b"}},
        400,
        "input 'text_input' already exists in request",
    ),
    "given twice in one object": (
        "tells",
        b'{"text_input": "a", "text_input": "b"}',
        400,
        "input 'text_input' already",
    ),
    "parameter given twice": (
        "tells",
        b'{"text_input": "a", "n": 1, "n": 2}',
        400,
        "input 'n' already exists in request",
    ),
    "given twice beside an object": (
        "tells",
        b'{"text_input": "a", "n": 1, "n": 2, "parameters": {}}',
        400,
        "input 'n' already exists in request",
    ),
    "given twice in parameters": (
        "tells",
        b'{"parameters": {"n": 1, "n": 2}, "text_input": "a"}',
        400,
        "input 'n' already exists in request",
    ),
    "misspelt": (
        "tells",
        {"Text_Input": "a"},
        400,
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0 inputs for model "
        "'tells'. Got input(s) [], but missing required input(s) ['text_input']. Please provide all required "
        "input(s)",
    ),
    "misspelt list": (
        "batched",
        {"Rows": [1, 2]},
        400,
        "parameter 'Rows' has invalid type. It should be either 'int', 'bool', or 'string'",
    ),
    "nested parameter": (
        "tells",
        {"text_input": "a", "parameters": {"nested": {"a": 1}}},
        400,
        "Converting keyword: 'parameters': parameter 'nested' has invalid type.",
    ),
    "lists that do not fit": (
        "batched",
        {"rows": [[1, 2, 3]]},
        400,
        "The schema can not convert input 'rows' to tensor with proper shape: lists of the shape [1,3] do not fit [-1,2]",
    ),
    "wrong count": (
        "tells",
        {"text_input": "a", "numbers": [1, 2, 3]},
        400,
        "The schema can not convert input 'numbers' to tensor with proper shape",
    ),
    "wrong type": ("tells", {"text_input": 3}, 500, "Unable to parse JSON bytes array: attempt to access JSON non-str"),
    "wrong number": (
        "batched",
        {"rows": [1.5, 2]},
        500,
        "Unable to parse 'data': attempt to access JSON non-signed-int",
    ),
    "list as parameter": ("tells", {"text_input": "a", "stop": ["x"]}, 400, "parameter 'stop' has invalid type."),
    "null as parameter": ("tells", {"text_input": "a", "stop": None}, 400, "parameter 'stop' has invalid type."),
    "missing input": (
        "tells",
        {},
        400,
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0",
    ),
    "input named parameters": (
        "nested",
        {},
        400,
        "Keyword 'parameters' for nested schema also given as input tensor name",
    ),
    "unknown model": ("nobody", {}, 404, "Request for unknown model: 'nobody' is not found"),
    "no response": ("repeat", {"IN": 0}, 500, WRONG_COUNT),
    "two responses": ("repeat", {"IN": [2]}, 500, WRONG_COUNT),
    "an error": ("repeat", {"IN": [1, 0]}, 404, "no 0"),
}


@pytest.mark.spec("srv-H33")
@pytest.mark.parametrize(("model", "document", "status", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(server, model, document, status, text, snapshot):
    reply = generate(server, model, document)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")
    assert reply.error.startswith(text)
    assert reply.error == snapshot


@pytest.mark.spec("srv-H33")
def test_compressed_and_large_bodies(server):
    reply = generate(server, "tells", b"x", headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")
    reply = generate(server, "tells", {"text_input": "a" * 17_000_000})
    assert reply.status == 400
    assert reply.error.startswith("the body exceeds 16777216 bytes")
    reply = generate(server, "tells", {"text_input": "a" * 15_000_000})
    assert len(json.loads(reply.json["seen"])["inputs"]["text_input"][1][0]) == 15_000_000


@pytest.mark.spec("srv-H34")
@pytest.mark.parametrize("count", [1, 3, 200])
def test_each_response_is_an_event(server, count):
    reply = generate(server, "repeat", {"IN": [count], "id": "a"}, "generate_stream")
    assert reply.status == 200
    assert events(reply) == [
        {"OUT": float(index), "id": "a", "model_name": "repeat", "model_version": "1"} for index in range(count)
    ]


@pytest.mark.spec("srv-H34")
def test_the_last_response_may_bring_the_final_flag(server):
    assert len(events(generate(server, "repeat", {"IN": [3, -1, 1]}, "generate_stream"))) == 3


@pytest.mark.spec("srv-H34")
def test_a_stream_without_responses_is_empty(server):
    reply = generate(server, "repeat", {"IN": [0]}, "generate_stream")
    assert (reply.status, reply.body) == (200, b"")


@pytest.mark.spec("srv-H34")
def test_a_model_that_is_not_decoupled_streams_one_event(server):
    (answer,) = events(generate(server, "tells", {"text_input": "a"}, "generate_stream"))
    assert answer["n"] == 3


@pytest.mark.spec("srv-H34")
def test_an_error_after_the_start_is_an_event(server):
    told = events(generate(server, "repeat", {"IN": [3, 1]}, "generate_stream"))
    assert [list(each) for each in told][:2] == [["OUT", "model_name", "model_version"], ["error"]]
    assert told[1] == {"error": "no 1"}
    assert told[2]["OUT"] == 2.0


@pytest.mark.spec("srv-H34")
def test_the_first_response_decides_the_status(server):
    """An error in it is an event, as all others; what is refused before the model has it is JSON."""
    reply = generate(server, "repeat", {"IN": [3, 0]}, "generate_stream")
    assert reply.status == 404
    first, *others = events(reply)
    assert first == {"error": "no 0"}
    assert [event["OUT"] for event in others] == [1.0, 2.0], "the stream goes on"
    for model, document, status in (("nobody", {}, 404), ("tells", b"{", 500), ("tells", {}, 400)):
        reply = generate(server, model, document, "generate_stream")
        assert (reply.status, reply.headers["content-type"]) == (status, "application/json")


def test_a_slow_reader_pauses_its_model_and_a_departure_cancels_it(server):
    gate = server.repository / "endless" / "gate"
    with connected(server.port) as connection:
        connection.send(post("/v2/models/endless/generate_stream", b'{"IN": 1}'))
        wait_until(lambda: _count(gate) > 20, "the model sends nothing")

        def stands_still():
            before = _count(gate)
            server.infer(
                "tells", {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
            )
            return _count(gate) == before

        wait_until(lambda: all(stands_still() for _ in range(5)), "the model is not paused")
        assert server.get("/v2/models/endless/ready").status == 200
    wait_until(gate.with_name("gate.cancelled").exists, "the model is not told that the client has left")


def _count(gate):
    file = gate.with_name("gate.count")
    return int(file.read_text() or 0) if file.exists() else 0
