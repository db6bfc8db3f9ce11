"""The protocol's documents have the members that the specification names and no others; our own facts have own routes."""

import platform
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2

VERSION = "/versions/{version}"
MODEL = "/v2/models/{model_name}"

TENSOR = {"name", "datatype", "shape"}
METADATA = {"name", "versions", "platform", "inputs", "outputs"}
STATISTICS = {"model_stats"}
INDEX = {"name", "version", "state", "reason"}
TRACE = {"trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"}
LOGGING = {"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"}

# Each route of the protocol that answers with a document, and the members that its document may have.
DOCUMENTS: dict[tuple[str, str], set[str]] = {
    ("get", "/v2"): {"name", "version", "extensions"},
    ("get", MODEL): METADATA,
    ("get", MODEL + VERSION): METADATA,
    ("post", MODEL + "/infer"): {"id", "model_name", "model_version", "parameters", "outputs"},
    ("post", MODEL + VERSION + "/infer"): {"id", "model_name", "model_version", "parameters", "outputs"},
    ("get", MODEL + "/stats"): STATISTICS,
    ("get", MODEL + VERSION + "/stats"): STATISTICS,
    ("get", "/v2/models/stats"): STATISTICS,
    ("post", "/v2/repository/index"): INDEX,
    ("get", "/v2/logging"): LOGGING,
    ("post", "/v2/logging"): LOGGING,
    **{(method, part + "/trace/setting"): TRACE for method in ("get", "post") for part in ("/v2", MODEL)},
}
HEALTH = {"live", "ready", "name", "error"}
DOCUMENTS |= {
    ("get", path): HEALTH
    for path in ("/v2/health/live", "/v2/health/ready", f"{MODEL}/ready", f"{MODEL}{VERSION}/ready")
}
CONFIGURATIONS = {("get", MODEL + "/config"), ("get", MODEL + VERSION + "/config")}
CONTROL = {("post", f"/v2/repository/models/{{model_name}}/{action}") for action in ("load", "unload")}
# What they answer is a list of regions, or nothing; the server of this module shares no memory.
SHARED = {
    (method, f"/v2/{kind}sharedmemory/{part}{action}")
    for kind in ("system", "cuda")
    for part in ("", "region/{region}/")
    for method, action in (("get", "status"), ("post", "unregister"))
} | {("post", f"/v2/{kind}sharedmemory/region/{{region}}/register") for kind in ("system", "cuda")}
# Their documents have the model's own members.
GENERATED = {("post", MODEL + part + rest) for part in ("", VERSION) for rest in ("/generate", "/generate_stream")}
OUR_OWN = (
    {("get", MODEL + part + rest) for part in ("", VERSION) for rest in ("/sandbox", "/environment")}
    | {(method, "/v2/repository/models/{model_name}/traffic") for method in ("get", "post")}
    | {("get", "/v2/models"), ("get", MODEL + "/stack")}
    | {
        ("get", f"/v2/diagnostics/{name}")
        for name in ("configuration", "environment", "log", "processes", "settings", "traces")
    }
)

MODELS = ("add_sub", "batched", "identity", "raw", "types")


def ask(server, method: str, path: str, model: str) -> Any:
    body = None
    if method == "post" and ("/trace/" in path or "/logging" in path):
        body = {}
    elif method == "post":
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
        model = "identity"
    return server.request(method.upper(), path.replace("{model_name}", model).replace("{version}", "1"), body)


def members(value: Any, descriptor: Any, path: str = "") -> list[str]:
    """The members of a configuration that its schema lacks."""
    if isinstance(value, list):
        return [found for each in value for found in members(each, descriptor, path)]
    if not isinstance(value, dict) or descriptor is None:
        return []
    if descriptor.GetOptions().map_entry:
        inner = descriptor.fields_by_name["value"].message_type
        return [found for key, each in value.items() for found in members(each, inner, f"{path}[{key}]")]
    fields = descriptor.fields_by_name
    unknown = [f"{path}.{name}" for name in value if name not in fields]
    known = [(name, each) for name, each in value.items() if name in fields]
    return unknown + [found for name, each in known for found in members(each, fields[name].message_type, name)]


def routes(server) -> set[tuple[str, str]]:
    paths = server.get("/openapi.json").json["paths"]
    examples = {path for path in paths if "{model_name}" not in path and path.endswith(("/infer", "/generate_stream"))}
    return {(method, path) for path in paths.keys() - examples for method in paths[path]}


@pytest.mark.spec("srv-H03", "srv-H04")
def test_each_route_is_the_protocols_or_our_own(server):
    assert routes(server) - DOCUMENTS.keys() - CONFIGURATIONS - CONTROL - GENERATED - SHARED == OUR_OWN


@pytest.mark.spec("srv-H03", "srv-H04")
@pytest.mark.parametrize("model", MODELS)
def test_documents_have_the_protocols_members_only(server, model):
    for method, path in sorted(routes(server) & DOCUMENTS.keys()):
        reply = ask(server, method, path, model)
        assert reply.status == 200, (path, reply.body)
        entries = reply.json if isinstance(reply.json, list) else [reply.json]
        for entry in entries:
            assert entry.keys() <= DOCUMENTS[method, path], path
            for tensor in (*entry.get("inputs", ()), *entry.get("outputs", ())):
                assert tensor.keys() <= TENSOR | ({"data", "parameters"} if method == "post" else set()), path


@pytest.mark.spec("srv-H06")
@pytest.mark.parametrize("model", MODELS)
def test_configurations_have_the_schemas_members_only(server, model):
    for method, path in CONFIGURATIONS:
        found = ask(server, method, path, model).json
        assert members(found, model_config_pb2.ModelConfig.DESCRIPTOR) == []


@pytest.mark.spec("srv-H40")
def test_errors_have_one_member(server):
    for method, path in routes(server) - {("get", "/v2")}:
        reply = server.request(method.upper(), path.format(model_name="unknown", version=1, region="none"), b"{}")
        if reply.status != 200 and not path.endswith("/ready"):  # which says that it is not, too
            assert list(reply.json) == ["error"], path


@pytest.mark.parametrize("path", ["identity", "identity/versions/1"])
def test_the_sandbox_of_a_model(server, path):
    reply = server.get(f"/v2/models/{path}/sandbox")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json["level"] == "standard"
    assert reply.json.keys() == {"level", "not_in_force"}


@pytest.mark.parametrize("path", ["identity", "identity/versions/1"])
def test_the_environment_of_a_model_on_the_servers_python(server, path):
    reply = server.get(f"/v2/models/{path}/environment")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json == {"path": None, "python": platform.python_version(), "numpy": np.__version__}


@pytest.mark.parametrize("route", ["sandbox", "environment"])
def test_our_own_routes_refuse_as_the_others_do(server, route):
    reply = server.get(f"/v2/models/unknown/{route}")
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'unknown' is not found")
    assert server.get(f"/v2/models/identity/versions/9/{route}").status == 404
    assert server.request("POST", f"/v2/models/identity/{route}", b"{}").status == 405
