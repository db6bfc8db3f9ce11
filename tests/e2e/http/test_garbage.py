"""Requests to every route of the OpenAPI document, most of them nonsense: each gets an answer, and no 500 without its
reason."""

import http.client
import json
import re
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fuzzing import examples
from tests.support.repositories import IDENTITY, copy_model, identity_config, write_model
from tests.support.served import served

MALFORMED = (
    "failed to parse the request JSON buffer",
    "Unable to parse",
    "Failed to parse 'data' field",
    "Expected JSON",
    "Expected a JSON object",
)
"""How the errors of status 500 begin that are for malformed JSON and members of the wrong type."""

GOOD = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@served()
def server(repository):
    write_model(repository, "identity", IDENTITY, identity_config())
    copy_model(repository, "repeat")


@pytest.fixture(scope="module")
def operations(server):
    """Method and path of every route that is documented."""
    found = server.get("/openapi.json").json["paths"]
    assert len(found) > 20
    return sorted((method.upper(), path) for path, methods in found.items() for method in methods)


@pytest.fixture(scope="module")
def connection(server):
    made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    yield made
    made.close()


NAMES = (
    st.sampled_from(["identity", "repeat", "repeat"])
    | st.sampled_from(["nobody", "", "..", "%2e", "a/b", "ü\0"])
    | st.text(max_size=8)
)
VERSIONS = st.sampled_from(["1", "1", "2", "0", "-1", "x", "9" * 30])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["inputs", "IN", "name", "parameters", "id", "x"]), inner)
    ),
    max_leaves=10,
)


@st.composite
def bodies(draw):
    document = json.loads(json.dumps(GOOD))
    tensor = document["inputs"][0]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from([document, tensor]))
        place[
            draw(st.sampled_from(["id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data", "x"]))
        ] = draw(JSON)
    text = json.dumps(draw(st.just(document) | JSON)).encode()
    return draw(
        st.just(text)
        | st.just(text[: draw(st.integers(0, len(text)))])
        | st.just(text + b"\0\1")
        | st.binary(max_size=50)
    )


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Inference-Header-Content-Length": st.sampled_from(["0", "1", "10", "-1", "x", "9" * 20, ""]),
        "Content-Type": st.sampled_from(["application/json", "application/octet-stream", "text/plain", "\t;="]),
        "Content-Encoding": st.sampled_from(["gzip", "deflate", "br", "identity", "gzip, gzip"]),
        "Accept-Encoding": st.sampled_from(["gzip", "*;q=x", "deflate;q=0.5, gzip;q=2"]),
        "Accept": st.sampled_from(["application/json", "image/png"]),
    },
)


@given(st.data())
@settings(parent=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_route_answers_garbage(operations, connection, data):
    method, path = data.draw(st.sampled_from(operations))
    method = data.draw(st.just(method) | st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]))
    name, version = data.draw(NAMES), data.draw(VERSIONS)
    target = re.sub(r"{\w*name}", quote(name, safe=""), path.replace("{version}", version))
    connection.request(method, target, data.draw(bodies()), data.draw(HEADERS))
    reply = connection.getresponse()
    answer = reply.read()
    assert reply.status < 500 or (message := json.loads(answer)["error"]), (reply.status, answer)
    assert reply.status != 500 or message.startswith(MALFORMED), message
    assert reply.status in {200, 400, 403, 404, 405, 500, 501, 503}


def test_the_server_serves_afterwards(server):
    assert server.infer("identity", GOOD).json["outputs"][0]["data"] == [1, 2]
