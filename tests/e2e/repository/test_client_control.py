"""Clients list, load and unload models, over HTTP and over gRPC."""

import base64
import hashlib
import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

EXPLICIT = "--model-control-mode=explicit"
CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [1]))} ]
instance_group {{ kind: KIND_CPU }}
"""
BROKEN = (
    "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('the weights are missing')\n"
)


def telling(number):
    return f"""
class TritonPythonModel:
    def execute(self, requests):
        answer = np.array([{number}], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""


SLOW = f"""
{GATE}

class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.place, "execute")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""
WHOLE = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository, other = tmp_path_factory.mktemp("control"), tmp_path_factory.mktemp("other")
    for name in ("a", "b", "untouched"):
        write_model(repository, name, telling(1), CONFIG)
    write_model(repository, "twice", telling(1), CONFIG)
    write_model(other, "twice", telling(1), CONFIG)
    write_model(repository, "broken", BROKEN, CONFIG)
    write_model(repository, "unreadable", telling(1), "backend: python")
    write_model(repository, "slow", SLOW, CONFIG)
    write_model(
        repository, "guarded", telling(1), CONFIG + 'parameters { key: "SANDBOX" value: { string_value: "off" } }'
    )
    with serving(repository, other, flags=(EXPLICIT, "--http-max-input-size=1000000")) as server:
        server.repository = repository
        yield server


def control(server, name, action, parameters=None):
    body = None if parameters is None else {"parameters": parameters}
    return server.request("POST", f"/v2/repository/models/{name}/{action}", body)


def index(server, body=b""):
    return server.request("POST", "/v2/repository/index", body).json


def rows(server, name):
    return [row for row in index(server) if row["name"] == name]


def number(server, name):
    return infer(server, name, {"IN": np.zeros(1, np.float32)})["OUT"][0]


@pytest.fixture(params=["http", "grpc"])
def client(request, server):
    """Triton's client of either protocol."""
    if request.param == "http":
        made = http_client.InferenceServerClient(server.url)
    else:
        made = grpc_client.InferenceServerClient(server.grpc_url)
    with made:
        yield made


def as_rows(answer):
    """The index in one form: HTTP gives lists, gRPC messages."""
    if isinstance(answer, list):
        return {(row["name"], row.get("version", "")): (row.get("state", ""), row.get("reason", "")) for row in answer}
    return {(row.name, row.version): (row.state, row.reason) for row in answer.models}


@pytest.mark.spec("srv-H24")
def test_the_index(server):
    assert control(server, "a", "load").status == 200
    assert control(server, "broken", "load").status == 400
    found = {row["name"]: row for row in index(server)}
    assert list(found) == sorted(found)
    assert found["untouched"] == {"name": "untouched"}
    assert found["a"] == {"name": "a", "version": "1", "state": "READY"}
    assert (found["broken"]["version"], found["broken"]["state"]) == ("1", "UNAVAILABLE")
    assert found["broken"]["reason"].startswith("Internal: ValueError: the weights are missing")
    assert found["twice"] == {
        "name": "twice",
        "version": "",
        "state": "UNAVAILABLE",
        "reason": "model appears in two or more repositories",
    }
    assert index(server, {"ready": False}) == index(server)
    assert {row["state"] for row in index(server, {"ready": True})} == {"READY"}
    reply = server.request("POST", "/v2/repository/index", {"ready": 1})
    assert reply.status == 400
    assert reply.error.startswith("Invalid value for 'ready': expected a boolean")
    control(server, "broken", "unload")


@pytest.mark.spec("srv-H24")
@pytest.mark.spec("srv-H25")
@pytest.mark.spec("srv-G01")
def test_tritons_clients_load_and_unload(server, client):
    client.unload_model("b")
    client.load_model("b")
    assert client.is_model_ready("b")
    assert as_rows(client.get_model_repository_index())["b", "1"] == ("READY", "")
    assert as_rows(client.get_model_repository_index())["untouched", ""] == ("", "")
    client.unload_model("b")
    wait_until(
        lambda: as_rows(client.get_model_repository_index())["b", "1"] == ("UNAVAILABLE", "unloaded"), "not unloaded"
    )
    assert not client.is_model_ready("b")
    with pytest.raises(
        InferenceServerException, match="load failed for model 'broken': version 1 is at UNAVAILABLE state"
    ):
        client.load_model("broken")
    client.unload_model("broken")
    client.unload_model("never heard of")


@pytest.mark.spec("srv-H26")
@pytest.mark.spec("srv-H27")
@pytest.mark.spec("srv-G01")
def test_tritons_clients_bring_configurations_and_files(server, client):
    client.load_model("b", config=json.dumps({**WHOLE, "max_batch_size": 3}))
    config = client.get_model_config("b")
    assert (config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size) == 3
    client.load_model("b")
    config = client.get_model_config("b")
    assert (config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size) == 0
    code = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + telling(5)
    client.load_model("brought", config=json.dumps(WHOLE), files={"file:/3/model.py": code.encode()})
    assert as_rows(client.get_model_repository_index())["brought", "3"] == ("READY", "")
    assert number(server, "brought") == 5
    client.unload_model("brought")


@pytest.mark.spec("srv-H25")
@pytest.mark.parametrize(
    ("name", "parameters", "status", "message"),
    [
        ("gone", None, 500, "failed to load 'gone', failed to poll from model repository: there is no directory"),
        (
            "unreadable",
            None,
            500,
            "failed to load 'unreadable', failed to poll from model repository: failed to read text",
        ),
        (
            "twice",
            None,
            500,
            "failed to load 'twice', failed to poll from model repository: model appears in two or more",
        ),
        ("a", {"config": "{"}, 500, "failed to load 'a', failed to poll from model repository: "),
        ("a", {"config": 1}, 500, "Unable to parse 'config': attempt to access JSON non-string as string"),
        ("a", {"what": "x"}, 500, "unexpected error on creating Triton parameter"),
        ("%2E%2E", None, 400, "invalid model name '..', model name must not contain path traversal characters"),
        ("%20", None, 400, "Model name cannot be empty. Please enter a valid name to deploy."),
        (
            "a",
            {"config": json.dumps({"version_policy": {"specific": {"versions": [7]}}})},
            400,
            "load failed for model 'a': at least one version must be available under the version policy of model 'a'",
        ),
    ],
)
def test_refused_loads(server, name, parameters, status, message, snapshot):
    reply = control(server, name, "load", parameters)
    assert (reply.status, reply.error[: len(message)]) == (status, message)
    assert reply.error == snapshot


@pytest.mark.spec("srv-H25")
def test_an_unload_answers_at_once_and_lets_requests_end(server):
    assert control(server, "slow", "load").status == 200
    gate = Gate(server.repository / "slow", "execute")
    with gate.holding(lambda: number(server, "slow")) as running:
        assert control(server, "slow", "unload", {"unload_dependents": True}).status == 200
        assert rows(server, "slow") == [{"name": "slow", "version": "1", "state": "UNLOADING"}]
        reply = server.infer("slow", {"inputs": []})
        assert (reply.status, reply.error) == (404, "Request for unknown model: 'slow' has no available versions")
        gate.open()
        assert running.result() == 1
    gone = {"name": "slow", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    wait_until(lambda: rows(server, "slow") == [gone], lambda: str(rows(server, "slow")))
    reply = control(server, "slow", "unload", {"unload_dependents": "yes"})
    assert (reply.status, reply.error[:35]) == (500, "Unable to parse 'unload_dependents'")
    assert control(server, "nobody", "unload").status == 200


@pytest.mark.spec("srv-H27")
@pytest.mark.parametrize(
    ("key", "config", "message"),
    [
        ("file:1/model.py", None, "files are given without a configuration"),
        ("file:../x/model.py", WHOLE, "'file:../x/model.py' is no path inside the model's folder"),
        ("file:/../passwd", WHOLE, "'file:/../passwd' is no path inside the model's folder"),
    ],
)
def test_refused_files(server, key, config, message):
    parameters = {key: base64.b64encode(b"pass").decode()}
    if config is not None:
        parameters["config"] = json.dumps(config)
    reply = control(server, "brought", "load", parameters)
    assert reply.status == 500
    assert reply.error.startswith(f"failed to load 'brought', failed to poll from model repository: {message}")


@pytest.mark.spec("srv-H27")
def test_files_are_base64_and_bounded(server):
    reply = control(server, "brought", "load", {"config": "{}", "file:1/model.py": "not base64!"})
    assert (reply.status, reply.error[:46]) == (400, "the content of 'file:1/model.py' is not base64")
    reply = control(server, "brought", "load", {"config": "{}", "file:1/model.py": "A" * 1_000_000})
    assert reply.status == 400
    assert "--http-max-input-size" in reply.error


def test_a_client_does_not_choose_the_rights_of_code(server):
    """The repository's own parameters stay; wider ones, and other environments, are refused."""

    def load(name, parameters, **members):
        given = {key: {"string_value": value} for key, value in parameters.items()}
        return control(server, name, "load", {"config": json.dumps({**WHOLE, "parameters": given}), **members})

    for parameters in ({"SANDBOX": "off"}, {"SANDBOX_READ": "/root"}, {"EXECUTION_ENV_PATH": "/usr"}):
        reply = load("a", parameters)
        (key, value), *_ = parameters.items()
        assert reply.status == 400
        assert f"parameters {key} is '{value}' in " in reply.error
        reply = load("brought", parameters, **{"file:1/model.py": ""})
        assert (reply.status, f"parameters {key} is" in reply.error) == (400, True)
    assert load("guarded", {"greeting": "hello"}).status == 200
    assert server.get("/v2/models/guarded/sandbox").json["level"] == "off"
    assert server.get("/v2/models/guarded/config").json["parameters"].keys() == {"greeting", "SANDBOX"}
    assert load("a", {"SANDBOX": "standard"}).status == 200


@pytest.mark.spec("srv-H25")
@pytest.mark.spec("srv-R04")
def test_without_explicit_control(tmp_path):
    write_model(tmp_path, "a", telling(1), CONFIG)
    with serving(tmp_path) as server:
        write_model(tmp_path, "b", telling(1), CONFIG)
        write_model(tmp_path, "a", telling(2), CONFIG)
        for name, action in (("a", "load"), ("b", "load"), ("a", "unload")):
            reply = control(server, name, action)
            assert reply.status == 503
            assert reply.error.startswith("explicit model load / unload is not allowed if polling is enabled")
        with grpc_client.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.load_model("b")
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert as_rows(client.get_model_repository_index()) == {("a", "1"): ("READY", ""), ("b", ""): ("", "")}
        assert number(server, "a") == 1
        assert index(server) == [{"name": "a", "version": "1", "state": "READY"}, {"name": "b"}]


@pytest.mark.spec("srv-H24")
def test_models_that_wait_for_their_first_load_have_only_a_name(tmp_path):
    held = (
        telling(1)
        + """
    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")
"""
    )
    gates = {name: Gate(write_model(tmp_path, name, GATE + held, CONFIG), "initialize") for name in ("a", "b")}
    with serving(tmp_path, flags=("--model-load-thread-count=1",), ready=False) as server:
        wait_until(lambda: any(gate.arrivals for gate in gates.values()), "no model begins to load")
        first, second = sorted(gates, key=lambda name: not gates[name].arrivals)
        rows = [{"name": first, "version": "1", "state": "LOADING"}, {"name": second}]
        assert sorted(index(server), key=len, reverse=True) == rows
        with grpc_client.InferenceServerClient(server.grpc_url) as client:
            expected = {(first, "1"): ("LOADING", ""), (second, ""): ("", "")}
            assert as_rows(client.get_model_repository_index()) == expected
        assert server.metrics()[f'pybackend_model_ready{{model="{second}",state="LOADING",version=""}}'] == 0
        for gate in gates.values():
            gate.open()
        server.wait_until("/v2/health/ready", 200)
        assert {row["state"] for row in index(server)} == {"READY"}


@pytest.mark.spec("srv-R02")
def test_a_name_in_two_repositories(tmp_path):
    for repository in ("one", "two"):
        write_model(tmp_path / repository, "m", telling(1), CONFIG)
    write_model(tmp_path / "two", "alone", telling(2), CONFIG)
    with serving(tmp_path / "one", tmp_path / "two", flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("1 of 2 models are ready")
        assert "failed to poll model 'm': not unique across all model repositories" in server.output
        reason = "model appears in two or more repositories"
        assert index(server) == [
            {"name": "alone", "version": "1", "state": "READY"},
            {"name": "m", "version": "", "state": "UNAVAILABLE", "reason": reason},
        ]
        assert number(server, "alone") == 2
        assert server.get("/v2/models/m/ready").status == 400


@pytest.mark.spec("srv-R26")
def test_files_with_other_digests_fail_the_load(server, snapshot):
    directory = write_model(server.repository, "checked", telling(1), None)
    digest = hashlib.md5((directory / "1" / "model.py").read_bytes()).hexdigest()

    def load(path, value):
        agent = f'agents {{ name: "checksum" parameters {{ key: "{path}" value: "{value}" }} }}'
        (directory / "config.pbtxt").write_text(f"{CONFIG} model_repository_agents {{ {agent} }}")
        return control(server, "checked", "load")

    reply = load("MD5:1/model.py", "00")
    assert reply.status == 500
    assert reply.error == snapshot
    for path, reason in (
        ("SHA1:1/model.py", "knows only 'MD5:"),
        ("MD5:1/gone", "No such file"),
        ("MD5:../x", "leads out"),
    ):
        reply = load(path, digest)
        assert (reply.status, reason in reply.error) == (500, True), reply.error
    assert load("MD5:1/model.py", digest).status == 200
    assert number(server, "checked") == 1
