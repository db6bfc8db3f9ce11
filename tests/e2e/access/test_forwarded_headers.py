"""Headers that become request parameters, over HTTP and gRPC."""

import asyncio
import json

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from tests.e2e.access.conftest import BODY, grpc_inputs, parameters_of
from tests.support.connection import connected, post, post_chunked
from tests.support.grpc_calls import RawClient, framed
from tests.support.server import DEADLINE_S, serving

TELL = "/v2/models/tell/infer"
PATTERN = "^(x-(user|trace).*|priority|triton_a)$"


@pytest.fixture(scope="module")
def server(repository):
    flags = (f"--http-header-forward-pattern={PATTERN}", f"--grpc-header-forward-pattern={PATTERN}")
    with serving(repository, flags=flags) as server:
        yield server


@pytest.mark.spec("srv-H37")
def test_headers_become_parameters(server):
    assert parameters_of(server, {}) == {}
    assert parameters_of(server, {"X-User": "ann", "x-trace-id": "7", "y-user": "no"}) == {
        "X-User": "ann",
        "x-trace-id": "7",
    }
    assert parameters_of(server, {"X-User": "ann"}, own=1) == {"X-User": "ann", "own": 1}


@pytest.mark.spec("srv-H37")
def test_known_heads_keep_their_parameters(server):
    """Heads that are remembered by their bytes: each with its own parameters."""
    with connected(server.port) as ann, connected(server.port) as bob:
        for _ in range(5):
            for connection, name in ((ann, "ann"), (bob, "bob")):
                connection.send(post(TELL, json.dumps(BODY).encode(), {"x-user": name}))
                assert told(connection.reply()) == {"x-user": name}
        ann.send(post(TELL, json.dumps(BODY).encode()))
        assert told(ann.reply()) == {}


def told(reply):
    return json.loads(reply.json["outputs"][0]["data"][0])


@pytest.mark.spec("srv-H37")
@pytest.mark.parametrize("name", ["priority", "Priority", "triton_a"])
def test_reserved_names(server, name):
    reply = server.infer("tell", BODY, {name: "1"})
    assert (reply.status, reply.error) == (
        400,
        f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
    )
    with (
        triton.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(triton.InferenceServerException) as caught,
    ):
        client.infer("tell", grpc_inputs(triton), headers={name.lower(): "1"}, client_timeout=DEADLINE_S)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert caught.value.message() == f"Header '{name.lower()}' is reserved for Triton usage and cannot be forwarded."


@pytest.mark.spec("srv-G21")
def test_metadata_of_grpc_keeps_its_blanks_and_may_have_capitals(server):
    """As gRPC's own servers read it. Clients of gRPC's refuse to send capitals and tabs."""
    with triton.InferenceServerClient(server.grpc_url) as client:
        for _ in range(3):
            answer = client.infer("tell", grpc_inputs(triton), headers={"x-user": " ann "}, client_timeout=DEADLINE_S)
            assert json.loads(answer.as_numpy("TOLD")[0]) == {"x-user": " ann "}
    assert told(server.infer("tell", BODY, {"x-user": " ann "})) == {"x-user": "ann"}, "HTTP trims"
    request = service_pb2.ModelInferRequest(model_name="tell", raw_input_contents=[bytes(4)])
    request.inputs.add(name="IN", datatype="FP32", shape=[1])

    async def told_by(*fields):
        host, _, port = server.grpc_url.partition(":")
        async with await RawClient.connect((host, int(port))) as client:
            answers = []
            for _ in range(2):  # the second head is remembered
                call = client.call(
                    "/inference.GRPCInferenceService/ModelInfer", framed(request.SerializeToString()), *fields
                )
                assert await client.status(call) == ("0", "")
                answer = service_pb2.ModelInferResponse.FromString(client.bodies[call][5:])
                answers.append(json.loads(answer.raw_output_contents[0][4:]))
            return answers

    spelled = asyncio.run(told_by(("X-User", " ann \t"), ("x-trace-id", "\t 7 b ")))
    assert spelled == 2 * [{"x-user": " ann \t", "x-trace-id": "\t 7 b "}]


@pytest.mark.spec("srv-H37")
def test_every_way_in(server):
    """Small bodies, large ones, chunks."""
    large = np.zeros(100_000, np.float32).tobytes()
    text = json.dumps(
        {"inputs": [{**BODY["inputs"][0], "shape": [100_000], "parameters": {"binary_data_size": len(large)}}]}
    )
    text = text.replace('"data": [0.5], ', "")
    headers = {"x-user": "ann", "Inference-Header-Content-Length": str(len(text))}
    assert told(server.request("POST", TELL, text.encode() + large, headers)) == {"x-user": "ann"}
    with connected(server.port) as connection:
        connection.send(post_chunked(TELL, [json.dumps(BODY).encode()], {"x-user": "ann"}))
        assert told(connection.reply()) == {"x-user": "ann"}


OTHER_ROUTES = {
    "/v2/models/tell/generate": ({"IN": 1.0, "own": 1}, lambda reply: reply.json["TOLD"]),
    "/v2/models/tell/generate_stream": ({"IN": 1.0}, lambda reply: json.loads(reply.body[6:])["TOLD"]),
}


@pytest.mark.spec("srv-H37")
@pytest.mark.parametrize("route", OTHER_ROUTES)
def test_every_other_route_that_runs_a_model(server, route):
    body, text_of = OTHER_ROUTES[route]
    own = {"own": 1} if "own" in body else {}
    reply = server.request("POST", route, body, {"X-User": "ann", "y-user": "no"})
    assert json.loads(text_of(reply)) == {"X-User": "ann", **own}
    refused = server.request("POST", route, body, {"x-user": "ann", "priority": "1"})
    assert refused.status == 400
    assert "Header 'priority' is reserved for Triton usage and cannot be forwarded." in refused.body.decode()


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ("X-User: a\r\nx-user: b", {"X-User": "a, b"}),
        ("X-User:", {"X-User": ""}),
        ("X-User: \xc3\xa9", {"X-User": "\u00e9"}),
        ("X-User: \xe9", {"X-User": "\u00e9"}),
        ("X-User: a\r\nX_User: b", {"X-User": "a"}),
    ],
)
def test_repeated_and_odd_headers(server, fields, parameters):
    body = json.dumps(BODY).encode()
    with connected(server.port) as connection:
        connection.send(
            f"POST {TELL} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{fields}\r\n\r\n".encode("latin-1")
            + body
        )
        assert told(connection.reply()) == parameters


def test_a_body_cannot_replace_a_header(server):
    assert parameters_of(server, {"X-User": "ann"}, **{"x-user": "root", "X-User": "root", "X-USER": "root"}) == {
        "X-User": "ann"
    }


def test_too_many_headers(server):
    body = json.dumps(BODY).encode()
    fields = "".join(f"a{number}: b\r\n" for number in range(300))
    with connected(server.port) as connection:
        connection.send(
            f"POST {TELL} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body
        )
        reply = connection.reply()
    assert (reply.status, "forwards headers takes 256 at most" in reply.error) == (400, True)


@pytest.mark.spec("srv-G17")
def test_metadata_become_parameters(server):
    with triton.InferenceServerClient(server.grpc_url) as client:
        for name in ("ann", "bob", "ann", "ann"):
            result = client.infer(
                "tell", grpc_inputs(triton), headers={"x-user": name, "y": "1"}, client_timeout=DEADLINE_S
            )
            assert json.loads(result.as_numpy("TOLD")[0]) == {"x-user": name}
        result = client.infer(
            "tell",
            grpc_inputs(triton),
            headers={"x-user": "ann"},
            parameters={"own": 1, "X-USER": "root"},
            client_timeout=DEADLINE_S,
        )
        assert json.loads(result.as_numpy("TOLD")[0]) == {"x-user": "ann", "own": 1}
        assert (
            json.loads(client.infer("tell", grpc_inputs(triton), client_timeout=DEADLINE_S).as_numpy("TOLD")[0]) == {}
        )


@pytest.mark.spec("srv-G17")
def test_metadata_of_a_stream(server):
    """They hold for each of its requests."""
    results = []
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(
            lambda result, error: results.append(error or result.as_numpy("TOLD")[0]), headers={"x-user": "ann"}
        )
        for _ in range(3):
            client.async_stream_infer("tell", grpc_inputs(triton))
        client.stop_stream()
    assert [json.loads(result) for result in results] == [{"x-user": "ann"}] * 3


def test_a_pattern_that_would_explode_elsewhere(repository):
    """Case matters if the pattern says so, and no name takes long."""
    flags = ("--http-header-forward-pattern=(?-i)^(X-(a+)+)+$",)
    with serving(repository, flags=flags) as server:
        assert parameters_of(server, {"X-aa": "1", "x-aa": "2", "X-AA": "3"}) == {"X-aa": "1"}
        assert parameters_of(server, {"X-" + "a" * 30_000 + "!": "1"}) == {}
