"""Cross-origin requests: preflights, the fields of answers, and origins that are not allowed."""

import json

import pytest

from tests.e2e.access.conftest import BODY
from tests.support.connection import connected, head, post
from tests.support.server import serving

pytestmark = pytest.mark.spec("srv-H47")

PAGE, OTHER = "https://example.org", "https://example.com"
INFER = "/v2/models/identity/infer"
KEY = "first-key-0123456789"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, x-api-key"}


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    """With API keys, which preflights cannot carry."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(KEY)
    flags = (
        f"--http-cors-origin={PAGE}",
        "--http-cors-origin=http://localhost:3000",
        "--http-cors-credentials",
        f"--api-key-file={file}",
    )
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for("identity .*READY")
        yield server


def cors_fields(reply):
    return {
        name.removeprefix("access-control-"): value
        for name, value in reply.headers.items()
        if name.startswith("access-control-")
    }


ALLOWED = {"allow-origin": PAGE, "allow-credentials": "true", "expose-headers": "Inference-Header-Content-Length"}


@pytest.mark.parametrize("path", [INFER, "/v2", "/v2/models/no/infer", "/nothing"])
def test_preflight(server, path):
    reply = server.request("OPTIONS", path, headers={"Origin": PAGE, **PREFLIGHT})
    assert reply.status == 200
    assert cors_fields(reply) == {
        "allow-origin": PAGE,
        "allow-credentials": "true",
        "allow-methods": "GET, POST",
        "allow-headers": PREFLIGHT["Access-Control-Request-Headers"],
        "max-age": "600",
    }
    refused = server.request("OPTIONS", path, headers={"Origin": OTHER, **PREFLIGHT})
    assert refused.status == 400
    assert "allow-origin" not in cors_fields(refused)


def test_options_that_is_no_preflight_needs_a_key(server):
    for headers in ({"Origin": PAGE}, {"Access-Control-Request-Method": "POST"}, {}):
        assert server.request("OPTIONS", INFER, headers=headers).status == 401
    assert server.request("POST", INFER, headers={"Origin": PAGE, **PREFLIGHT}).status == 401


@pytest.mark.parametrize("times", [1, 4])
def test_inference(server, times):
    """Also with a head that is known."""
    body = json.dumps({**BODY, "parameters": {"binary_data_output": True}}).encode()
    for origin, fields in ((PAGE, ALLOWED), (OTHER, {}), (None, {})):
        headers = {"x-api-key": KEY, **({"Origin": origin} if origin else {})}
        with connected(server.port) as connection:
            for _ in range(times):
                connection.send(post(INFER, body, headers))
                reply = connection.reply()
                assert (reply.status, cors_fields(reply)) == (200, fields)
                assert reply.headers.get("vary") == ("Origin" if origin else None)
                assert int(reply.headers["inference-header-content-length"]) > 0


def test_every_answer_has_the_fields(server):
    key = {"x-api-key": KEY, "Origin": PAGE}
    large = {"inputs": [{**BODY["inputs"][0], "shape": [300_000], "data": [0.5] * 300_000}]}
    replies = {
        "other routes": (server.request("GET", "/v2", headers=key), 200),
        "errors of infer": (server.infer("identity", b"{", key), 500),
        "an unknown model": (server.infer("no", BODY, key), 404),
        "an unknown route": (server.request("GET", "/nothing", headers=key), 404),
        "a denied call": (server.request("GET", "/v2", headers={"Origin": PAGE}), 401),
        "a response in pieces": (server.infer("identity", large, key), 200),
        "generate": (server.request("POST", "/v2/models/identity/generate", {"IN": 1.0}, key), 200),
    }
    for case, (reply, status) in replies.items():
        assert (reply.status, cors_fields(reply)) == (status, ALLOWED), case


def test_all_origins(repository):
    with serving(repository, flags=("--http-cors-origin=*",)) as server:
        expected = {"allow-origin": "*", "expose-headers": "Inference-Header-Content-Length"}
        assert cors_fields(server.infer("identity", BODY, {"Origin": OTHER})) == expected
        assert cors_fields(server.request("GET", "/v2", headers={"Origin": "null"})) == expected
        assert cors_fields(server.infer("identity", BODY)) == {}
        reply = server.request("OPTIONS", INFER, headers={"Origin": OTHER, **PREFLIGHT})
        assert cors_fields(reply)["allow-origin"] == "*"
        assert "allow-credentials" not in cors_fields(reply)
        metrics = server.request("GET", "/metrics", headers={"Origin": OTHER}, port=server.metrics_port)
        assert cors_fields(metrics) == {}


def test_off_by_default(repository):
    with serving(repository) as server, connected(server.port) as connection:
        connection.send(head("OPTIONS", INFER, {"Origin": OTHER, **PREFLIGHT}))
        reply = connection.reply()
        assert (reply.status, cors_fields(reply)) == (405, {})
        assert cors_fields(server.infer("identity", BODY, {"Origin": OTHER})) == {}


def test_the_log_names_the_flag_for_a_page_that_is_refused(repository):
    """Once for each page, and not for the server's own."""
    with serving(repository) as server:
        own = f"http://127.0.0.1:{server.port}"
        for origin in (own, OTHER, "null", OTHER, "null", "moz-extension:x"):
            assert server.infer("identity", BODY, {"Origin": origin}).status == 200
        server.request("OPTIONS", INFER, headers={"Origin": PAGE, **PREFLIGHT})
        server.wait_for(f"--http-cors-origin={PAGE} ")
        said = [line for line in server.output.splitlines() if "web page" in line]
    assert ["python -m http.server 3000" in line for line in said] == [False, True, False]
    assert f"--http-cors-origin={OTHER} " in said[0]
    assert "--http-cors-origin=http://localhost:3000 " in said[1]


def test_the_log_names_pages_beside_the_allowed_ones(repository):
    with serving(repository, flags=(f"--http-cors-origin={PAGE}",)) as server:
        for number in range(200):
            server.request("GET", "/v2", headers={"Origin": PAGE})
            server.request("GET", "/v2", headers={"Origin": f"https://{number}.example.com"})
        server.wait_for("further web pages")
        said = [line for line in server.output.splitlines() if "web page" in line]
    assert f"--http-cors-origin={PAGE} " not in "".join(said)
    assert len(said) == 65
