"""Which paths and methods there are, how names are written in them, and what describes them."""

import re
from urllib.parse import quote, unquote

import pytest

from tests.e2e.http.models import SPACED
from tests.support.connection import head
from tests.support.log_lines import server_tracebacks

NOT_FOUND = '{"error":"Not Found. GET /v2/models lists the models that serve, and /docs all routes"}'
NOT_ALLOWED = '{"error":"Method Not Allowed. The page /docs says which methods a route has"}'
IDENTITY_REQUEST = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@pytest.mark.spec("srv-H36")
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v2/",
        "/v2/health",
        "/v2/health/xyz",
        "/v2/health/live/",
        "/v2/models/identity/",
        "/v2/models/identity/nothing",
        "/v2/models/identity/infer/",
        "/v2/models/identity/versions",
        "/v2/models/identity/versions/1/nothing",
        "/v2/models/identity/versions/abc/infer",
        "/v2/models/identity/versions/-1/infer",
        "/v2/models//infer",
    ],
)
def test_unknown_path(server, method, path):
    reply = server.request(method, path, b"" if method in {"POST", "PUT", "PATCH"} else None)
    assert (reply.status, reply.body.decode(), reply.headers["content-type"]) == (404, NOT_FOUND, "application/json")


@pytest.mark.spec("srv-H36")
@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v2", "GET"),
        ("/v2/health/live", "GET"),
        ("/v2/health/ready", "GET"),
        ("/v2/models/identity", "GET"),
        ("/v2/models/identity/ready", "GET"),
        ("/v2/models/identity/config", "GET"),
        ("/v2/models/identity/versions/1", "GET"),
        ("/v2/models/identity/infer", "POST"),
        ("/v2/models/identity/versions/1/infer", "POST"),
        ("/v2/models/unknown/infer", "POST"),
    ],
)
def test_wrong_method(server, path, right):
    for method in {"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} - {right}:
        reply = server.request(method, path, b"{}" if method in {"POST", "PUT", "PATCH"} else None)
        assert (reply.status, reply.body.decode()) == (405, NOT_ALLOWED), method
        assert reply.headers["content-type"] == "application/json"
        assert right in reply.headers["allow"]


@pytest.mark.spec("srv-H36")
@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v2/health/ready",
        "/v2/models/no/ready",
        "/v2/models/identity/infer",
        "/nothing",
        "/",
        "/docs",
        "/openapi.json",
    ],
)
def test_head_gets_the_head_of_the_answer_to_get(server, connect, path):
    connection = connect()
    connection.send(head("HEAD", path) + head("GET", "/v2/health/live"))
    reply, whole = connection.reply(to="HEAD"), server.get(path)
    assert (reply.status, reply.headers["content-length"]) == (whole.status, whole.headers["content-length"])
    assert connection.reply().status == 200


def test_head_of_the_metrics(server):
    assert server.request("HEAD", "/metrics", port=server.metrics_port).status == 200
    assert server.request("HEAD", "/", port=server.metrics_port).status == 404


@pytest.mark.spec("srv-H36")
def test_query_strings_are_ignored(server):
    assert server.get("/v2/health/ready?x=1&y").status == 200
    assert server.get("/v2/models/identity?versions=7").json["name"] == "identity"
    assert server.request("POST", "/v2/models/identity/infer?a=b&c", IDENTITY_REQUEST).status == 200
    assert server.request("POST", "/v2/models/identity/versions/1/infer?", IDENTITY_REQUEST).status == 200


@pytest.mark.spec("srv-H36")
@pytest.mark.parametrize("method", ["get", "FOO", "POSTX"])
def test_method_that_http_does_not_know(connect, method):
    connection = connect()
    connection.send(head(method, "/v2"))
    reply = connection.reply()
    assert reply.status == 400
    assert reply.error
    assert connection.at_end()


@pytest.mark.parametrize(
    "name", [quote(SPACED), quote(SPACED, safe="+"), "".join(f"%{b:02x}" for b in SPACED.encode())]
)
def test_names_may_be_percent_encoded(server, name):
    assert server.get(f"/v2/models/{name}").json["name"] == SPACED
    assert server.get(f"/v2/models/{name}/ready").status == 200
    assert server.get(f"/v2/models/{name}/versions/1/config").json["name"] == SPACED
    for path in (name, f"{name}/versions/1"):
        reply = server.infer(path, IDENTITY_REQUEST)
        assert reply.status == 200
        assert reply.json["model_name"] == SPACED


@pytest.mark.parametrize("name", ["%", "%zz", "%ff", "a%00b", "%F0%9F%92%A9", "%ED%A0%80"])
def test_odd_names_are_just_unknown(server, name):
    """On both ways, the protocol's own and ASGI's, and never with a traceback."""
    for reply in (server.infer(name, b"{}"), server.get(f"/v2/models/{name}")):
        assert reply.status == 404
        assert reply.error.startswith("Request for unknown model: '")


SHARED_MEMORY = (
    "status",
    "unregister",
    *(f"region/{{region}}/{action}" for action in ("status", "register", "unregister")),
)


def test_openapi_describes_the_routes(server):
    reply = server.get("/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    paths = reply.json["paths"]
    assert {path for path in paths if "{model_name}" in path or not path.endswith(("/infer", "/generate_stream"))} == {
        "/v2",
        "/v2/models",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/{model_name}/trace/setting",
        "/v2/models/{model_name}",
        "/v2/models/{model_name}/generate",
        "/v2/models/{model_name}/versions/{version}/generate",
        "/v2/models/{model_name}/generate_stream",
        "/v2/models/{model_name}/versions/{version}/generate_stream",
        "/v2/models/{model_name}/config",
        "/v2/models/{model_name}/ready",
        "/v2/models/{model_name}/infer",
        "/v2/models/{model_name}/versions/{version}",
        "/v2/models/{model_name}/versions/{version}/config",
        "/v2/models/{model_name}/versions/{version}/ready",
        "/v2/models/{model_name}/versions/{version}/infer",
        "/v2/models/{model_name}/sandbox",
        "/v2/models/{model_name}/stack",
        "/v2/models/{model_name}/environment",
        "/v2/models/{model_name}/versions/{version}/sandbox",
        "/v2/models/{model_name}/versions/{version}/environment",
        "/v2/diagnostics/configuration",
        "/v2/diagnostics/environment",
        "/v2/diagnostics/log",
        "/v2/diagnostics/processes",
        "/v2/diagnostics/settings",
        "/v2/diagnostics/traces",
        "/v2/models/stats",
        "/v2/models/{model_name}/stats",
        "/v2/models/{model_name}/versions/{version}/stats",
        "/v2/repository/index",
        "/v2/repository/models/{model_name}/load",
        "/v2/repository/models/{model_name}/unload",
        "/v2/repository/models/{model_name}/traffic",
        *(f"/v2/{kind}sharedmemory/{rest}" for kind in ("system", "cuda") for rest in SHARED_MEMORY),
    }
    infer = paths["/v2/models/{model_name}/infer"]["post"]
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    for path, operations in paths.items():
        for operation in operations.values():
            assert {"200", "400", "404", "500", "503"} <= set(operation["responses"]), path
    stream = paths["/v2/models/{model_name}/generate_stream"]["post"]["responses"]["200"]["content"]
    events = stream["text/event-stream"]["schema"]["description"]
    assert 'event `data: {"error": "..."}` for a response that fails' in events
    assert "Inference-Header-Content-Length" in {parameter["name"] for parameter in infer["parameters"]}


@pytest.mark.spec("srv-H36")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v2/trace/setting", "GET, HEAD, POST"),
        ("DELETE", "/v2/models/identity/trace/setting", "GET, HEAD, POST"),
        ("PUT", "/v2/logging", "GET, HEAD, POST"),
        ("PUT", "/v2/repository/models/identity/traffic", "GET, HEAD, POST"),
        ("POST", "/v2/models/identity/config", "GET, HEAD"),
        ("GET", "/v2/models/identity/infer", "POST"),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(server, method, path, allowed):
    reply = server.request(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)


def test_each_model_has_an_example_that_it_takes(server):
    """A browser's page fills it in; what it makes up from the types of members is refused."""
    paths = server.get("/openapi.json").json["paths"]
    examples = {
        path: operations["post"]
        for path, operations in paths.items()
        if re.fullmatch(r"/v2/models/[^{]+/\w+", path) and "post" in operations
    }
    served = server.get("/v2/models").json["models"]
    named = {unquote(path.split("/")[3]) for path in examples}
    assert {"identity", "add_sub", "batched", SPACED} <= named <= set(served)
    for path in examples:
        body = examples[path]["requestBody"]["content"]["application/json"]["example"]
        reply = server.request("POST", path, body)
        # A model may refuse what is in its inputs, but not their names, types and shapes.
        assert reply.status == 200 or path.split("/")[3] in {"probe", "patient"}, (path, reply.body)


def test_no_example_is_a_mistake_of_the_servers_own(server):
    """Each route that takes JSON, with what the page fills in, and the name of a model that is not there."""
    for path, operations in server.get("/openapi.json").json["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "{" in path and "application/json" in content:
            body = content["application/json"]["schema"].get("example", {})
            reply = server.request("POST", re.sub(r"{\w+}", "1", path), body)
            assert reply.status not in {200, 500}, (path, reply.body)


def test_documentation_page(server):
    reply = server.get("/docs")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "url: 'openapi.json'" in reply.body.decode()
    assert server.get("/").status in {302, 307}


def test_documentation_page_needs_no_other_server(server):
    reply = server.get("/docs")
    page = reply.body.decode()
    named = re.findall(r"""(?:src|href|url:)\s*=?\s*["']([^"']+)["']""", page)
    assert len(named) == 4
    assert "//" not in "".join(named)
    for name in named:
        file = server.get(f"/{name}")
        assert (file.status, len(file.body) > 500) == (200, True), name
    kinds = [server.get(f"/{name}").headers["content-type"].partition(";")[0] for name in named]
    assert sorted(kinds) == ["application/json", "image/png", "text/css", "text/javascript"]
    # Swagger UI would otherwise send the document's address to a service that validates it.
    assert '"validatorUrl": null' in page
    assert reply.headers["content-security-policy"].startswith("default-src 'self';")
    assert server.get("/docs/redoc.standalone.js").status == 404
    assert server.get("/docs/..%2f__init__.py").status == 404


@pytest.mark.spec("srv-H40")
def test_content_types(server):
    request = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    as_json = server.infer("identity", request)
    assert as_json.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in as_json.headers
    binary = server.infer("identity", request | {"parameters": {"binary_data_output": True}})
    assert binary.headers["content-type"] == "application/octet-stream"
    length = int(binary.headers["inference-header-content-length"])
    assert length == len(binary.body) - 8
    empty = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [0], "data": []}]}
    nothing = server.infer("identity", empty | {"parameters": {"binary_data_output": True}})
    assert nothing.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in nothing.headers
    assert nothing.json["outputs"][0]["parameters"] == {"binary_data_size": 0}
    # Whatever comes in, no content type is asked for.
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert (
            server.request("POST", "/v2/models/identity/infer", request, {"Content-Type": content_type}).status == 200
        )


@pytest.mark.spec("srv-H40")
def test_every_error_is_json(server, ask):
    replies = {
        "unknown path": server.get("/nothing"),
        "wrong method": server.request("DELETE", "/v2"),
        "unknown model, ASGI": server.get("/v2/models/unknown"),
        "unknown model, infer": server.infer("unknown", b"{}"),
        "missing version": server.infer("identity/versions/9", b"{}"),
        "bad JSON": server.infer("identity", b"{"),
        "bad shape": server.infer("add_sub", b'{"inputs":[]}'),
        "from the model": ask('{"raise": "oh"}'),
        "compression": server.infer("identity", b"{}", {"Content-Encoding": "br"}),
    }
    for case, reply in replies.items():
        assert reply.status >= 400, case
        assert reply.headers["content-type"] == "application/json", case
        assert list(reply.json) == ["error"], case
        assert reply.body == reply.body.strip(), case


@pytest.mark.parametrize("digits", ["9" * 20, "1" + "0" * 4300, "0" * 4300 + "7"])
@pytest.mark.parametrize(("method", "rest"), [("POST", "/infer"), ("GET", ""), ("GET", "/config"), ("GET", "/ready")])
def test_version_of_more_digits_than_any(server, digits, method, rest):
    reply = server.request(method, f"/v2/models/identity/versions/{digits}{rest}", b"{}" if method == "POST" else None)
    assert reply.status == (400 if rest == "/ready" else 404), reply.body
    assert ("is not found" if rest != "/ready" else "not ready") in reply.error
    assert not server_tracebacks(server.output)


def test_leading_zeros_of_a_version(server):
    zeros = "0" * 4300
    assert server.get(f"/v2/models/identity/versions/{zeros}1").json["versions"] == ["1"]
    assert server.infer(f"identity/versions/{zeros}1", IDENTITY_REQUEST).status == 200
