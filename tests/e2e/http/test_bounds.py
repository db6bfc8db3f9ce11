"""Bodies that no honest client sends are refused by their heads, on every route, and after what the server refuses
anyway."""

import json

import pytest

from tests.e2e.http.test_generate import generate
from tests.support.connection import connected, head, post_chunked
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served

HUGE = 60_000_000
SMALL = "the body exceeds 8192 bytes, the most that this route accepts"


@served(flags=("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm"))
def explicit(repository):
    write_model(repository, "identity", IDENTITY, identity_config())


def announced(server, path, nbytes=HUGE):
    """The answer to a request whose body does not come."""
    with connected(server.port) as connection:
        connection.send(head("POST", path, {"Content-Length": nbytes}))
        return connection.reply()


SMALL_ROUTES = (
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/identity/trace/setting",
    "/v2/repository/index",
    "/v2/repository/models/identity/unload",
    "/v2/repository/models/identity/traffic",
    "/v2/systemsharedmemory/region/r/register",
)


@pytest.mark.parametrize("path", SMALL_ROUTES)
def test_a_small_route_refuses_a_large_body_by_its_head(explicit, path):
    reply = announced(explicit, path)
    assert (reply.status, reply.error) == (400, SMALL)
    with connected(explicit.port) as connection:
        connection.send(post_chunked(path, [b" " * 5000, b" " * 5000])[:-5])  # and the last chunk is missing
        reply = connection.reply()
        assert (reply.status, reply.error) == (400, SMALL)


@pytest.mark.parametrize(
    ("path", "limit", "advice"),
    [
        ("/v2/models/identity/generate", 1 << 24, "use /infer for large tensors"),
        ("/v2/models/identity/generate_stream", 1 << 24, "use /infer for large tensors"),
        ("/v2/repository/models/identity/load", 1 << 26, "use --http-max-input-size to increase it"),
    ],
)
def test_other_routes_take_more_and_no_more(explicit, path, limit, advice):
    reply = announced(explicit, path, limit + 1)
    assert (reply.status, reply.error) == (
        400,
        f"the body exceeds {limit} bytes, the most that this route accepts: {advice}",
    )


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v2/repository/models/identity/load", 503, "explicit model load / unload is not allowed"),
        ("/v2/repository/models/identity/unload", 503, "explicit model load / unload is not allowed"),
        ("/v2/repository/models/identity/traffic", 503, "explicit model load / unload is not allowed"),
        ("/v2/models/nobody/generate", 404, "Request for unknown model"),
        ("/v2/models/nobody/trace/setting", 400, "Request for unknown model"),
        ("/v2/systemsharedmemory/region/r/register", 501, "Client shared memory is disabled"),
    ],
)
def test_what_the_server_does_not_do_is_refused_before_the_body(server, path, status, text):
    """Otherwise such a request costs as much as one that is served."""
    reply = announced(server, path)
    assert reply.status == status
    assert reply.error.startswith(text)


def test_a_load_has_little_beside_its_files(explicit, snapshot):
    path = "/v2/repository/models/identity/load"
    for body in (
        json.dumps({"parameters": {"config": "a" * 3_000_000}}),
        json.dumps({f"m{number}": 1 for number in range(200_000)}),
        '{"parameters": ' + "1" * 3_000_000 + ', "a": "b"}',
    ):
        reply = explicit.request("POST", path, body.encode())
        assert (reply.status, reply.error) == (
            400,
            "the request has more than 2097152 bytes beside the contents of its files",
        )
    reply = explicit.request("POST", path, {"parameters": {"config": " " * 1_100_000}})
    assert reply.error == snapshot


MUCH = "the body has too much beside its texts and its inputs' lists: at most 1024 members and 1048576 bytes can be"


@pytest.mark.parametrize(
    "document",
    [
        {f"m{number}": 1 for number in range(1100)},
        {"IN": 1, "parameters": {"a": list(range(200_000))}},
        b'{"IN": ' + b"1" * 1_100_000 + b"}",
    ],
    ids=["members", "list in parameters", "number"],
)
def test_generate_takes_a_bounded_number_of_members(explicit, document):
    reply = generate(explicit, "identity", document)
    assert reply.status == 400
    assert reply.error.startswith(MUCH)


def test_generate_takes_long_texts_and_lists(explicit):
    values = [float(number) for number in range(300_000)]
    reply = generate(explicit, "identity", {"IN": values, "note": 'ö"\\' * 300_000})
    assert reply.status == 200, reply.body[:300]
    assert reply.json["OUT"] == values


@pytest.mark.parametrize("route", ["infer", "generate"])
def test_a_number_is_short(explicit, route):
    digits = b"1" * 400_000
    tensor = b"[%b]" % digits
    if route == "infer":
        body = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":%b}]}' % tensor
    else:
        body = b'{"IN":%b}' % tensor
    reply = explicit.request("POST", f"/v2/models/identity/{route}", body)
    assert (reply.status, reply.error) == (
        400,
        "input 'IN' has a value of 65536 bytes or more, and numbers never take so much",
    )
