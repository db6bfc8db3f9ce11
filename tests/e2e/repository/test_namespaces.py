"""Repositories as namespaces: models of the same name, and who means which."""

import json
from collections import Counter
from urllib.parse import quote

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from pybackend.cli.commands import run
from tests.support.callers import caller, write_caller
from tests.support.ensembles import write_ensemble
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.model_control import CONFIG
from tests.support.repositories import write_model
from tests.support.server import serving
from tests.support.trace_files import fragments_in

STEP = {"IN": "IN"}, {"OUT": "OUT"}


def adding(number):
    return f"""
    class TritonPythonModel:
        def execute(self, requests):
            found = [request.inputs()[0].as_numpy() + {number} for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.astype(np.float32))]) for each in found]
    """


def namespaces_in(path):
    """Those of traces of the model ``add``."""
    return {row["namespace"] for row in fragments_in(path) if row.get("model_name") == "add"}


class Place:
    """Two repositories with models of the same names, and a server of both."""

    def __init__(self, directory, server):
        self.directory = directory
        self.server = server
        self.a, self.b = f"{directory}/team_a/models", f"{directory}/team_b/models"

    def ambiguous(self, name):
        return (
            f"There are 2 identifiers of model '{name}' in global map, model namespace must be provided to resolve "
            f"ambiguity. Name one of them: '{self.a}::{name}', '{self.b}::{name}'"
        )

    def answer(self, model):
        """The number that a model adds to 0; the status and the error of a refusal."""
        reply = infer(self.server, model, {"IN": np.zeros(1, np.float32)})
        return float(reply["OUT"][0]) if reply.status == 200 else (reply.status, reply.error)

    def load(self, model, body=None):
        reply = self.server.request("POST", f"/v2/repository/models/{model}/load", body or {})
        return reply.status if reply.status == 200 else (reply.status, reply.error)

    def unload(self, model):
        """Begin to unload a model, and wait until it is gone."""
        reply = self.server.request("POST", f"/v2/repository/models/{model}/unload", {})
        if reply.status != 200:
            return reply.status, reply.error
        self.server.wait_until(f"/v2/models/{model}/ready", 400)
        return 200

    def index(self, name):
        rows = self.server.request("POST", "/v2/repository/index", {}).json
        return [(row["namespace"], row.get("state")) for row in rows if row["name"] == name]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("namespaces")
    for number, team in (1, "team_a"), (2, "team_b"):
        repository = directory / team / "models"
        write_model(repository, "add", adding(number), CONFIG + 'metric_tags { key: "tag" value: "x" }')
        write_caller(repository)
        write_ensemble(repository, "pipe", [("add", *STEP)])
    write_model(directory / "team_b" / "models", "only_b", adding(20), CONFIG)
    write_ensemble(directory / "team_a" / "models", "reaching", [("only_b", *STEP)])
    write_ensemble(directory / "team_a" / "models", "choosing", [("team_b::add", *STEP)])
    (directory / "again").symlink_to(directory / "team_b" / "models")
    flags = ("--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1")
    traces = f"--trace-config=triton,file={directory / 'traces.json'}"
    flags += (traces, "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS")
    repositories = [directory / "team_a" / "models", directory / "team_b" / "models", directory / "again"]
    with serving(*repositories, flags=flags) as server:
        yield Place(directory, server)


@pytest.mark.spec("srv-R24")
def test_a_namespace_names_the_model_over_http(place):
    assert place.answer("add") == (400, place.ambiguous("add"))
    assert [place.answer("team_a::add"), place.answer("team_b::add")] == [1, 2]
    assert place.answer(f"{place.a}::add".replace("/", "%2F")) == 1
    assert place.answer("only_b") == 20
    assert place.answer("team_a::only_b")[0] == 400
    assert place.answer("models::add") == (400, "Request for unknown model: 'models::add' is not found")
    for path in "", "/config", "/stats", "/trace/setting", "/versions/1":
        reply = place.server.get(f"/v2/models/add{path}")
        assert (reply.status, reply.error) == (400, place.ambiguous("add")), path
        assert place.server.get(f"/v2/models/team_b::add{path}").status == 200, path
    slashed = quote(f"{place.a}::add", safe="")
    for path in "", "/config", "/stats", "/trace/setting", "/versions/1", "/ready", "/sandbox":
        assert place.server.get(f"/v2/models/{slashed}{path}").status == 200, path
    reply = place.server.request("POST", f"/v2/models/{slashed}/generate", {"IN": 0})
    assert reply.json["OUT"] == 1
    document = place.server.infer("team_b::add", '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[0]}]}')
    assert document.json["model_name"] == "add"
    assert place.server.get("/v2/models/team_b::add").json["name"] == "add"


def test_refusals_of_a_model_are_counted_under_its_full_name(place):
    def counts():
        found = Counter()
        for sample, value in place.server.metrics().items():
            if sample.startswith("pybackend_refused_requests_total") and 'reason="invalid"' in sample:
                found[sample.partition('model="')[2].partition('"')[0]] += value
        return found

    before = counts()
    for name in ("only_b", "team_b::only_b", quote(f"{place.b}::only_b", safe="")):
        for action in ("infer", "generate"):
            assert place.server.request("POST", f"/v2/models/{name}/{action}", b"{").status == 500
        large = b'{"inputs": [' + b" " * 100_000
        assert place.server.request("POST", f"/v2/models/{name}/infer", large).status == 500
    with grpcclient.InferenceServerClient(place.server.grpc_url) as client:
        for name in ("only_b", "team_b::only_b"):
            tensor = grpcclient.InferInput("OTHER", [2], "FP32")
            tensor.set_data_from_numpy(np.zeros(2, np.float32))
            with pytest.raises(InferenceServerException):
                client.infer(name, [tensor])
    assert counts() - before == {f"{place.b}::only_b": 11}


@pytest.mark.spec("srv-R24")
def test_clients_of_triton_reach_both_over_http_and_grpc(place):
    inputs = []
    for client in httpclient, grpcclient:
        tensor = client.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, np.float32))
        inputs.append([tensor])
    with httpclient.InferenceServerClient(place.server.url) as client:
        assert client.infer("team_b::add", inputs[0]).as_numpy("OUT")[0] == 2
        assert client.get_model_config("team_b::add")["name"] == "add"
        assert client.is_model_ready("team_a::add")
    with grpcclient.InferenceServerClient(place.server.grpc_url) as client:
        for namespace, number in ("team_a", 1), (place.a, 1), (place.b, 2):
            assert client.infer(f"{namespace}::add", inputs[1]).as_numpy("OUT")[0] == number
        with pytest.raises(InferenceServerException) as refused:
            client.infer("add", inputs[1])
        assert refused.value.message() == place.ambiguous("add")
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert len(client.get_inference_statistics(f"{place.a}::add").model_stats) == 1
        assert sorted(row.name for row in client.get_inference_statistics().model_stats).count("add") == 2
        assert [row.name for row in client.get_model_repository_index().models].count("add") == 2
        client.load_model(f"{place.a}::add")


@pytest.mark.spec("srv-R24")
def test_models_and_ensembles_prefer_their_own_namespace(place):
    assert [place.answer("team_a::pipe"), place.answer("team_b::pipe")] == [1, 2]
    assert [place.answer("reaching"), place.answer("choosing")] == [20, 2]
    in_a, in_b = caller(place.server, "team_a::caller"), caller(place.server, "team_b::caller")
    code = "return value(call(%r, IN=[0.0]).exec())"
    assert [in_a(code % "add"), in_b(code % "add")] == [[1], [2]]
    assert [in_a(code % "only_b"), in_a(code % "team_b::add"), in_b(code % f"{place.a}::add")] == [[20], [2], [1]]
    # Its own name stands for itself, so a model reaches its namesake only by the namespace.
    nested = "return json.loads(value(call('team_b::caller', CODE=[%r]).exec(), 'JSON')[0])"
    assert in_a(nested % "return value(call('add', IN=[0.0]).exec())") == [2]
    assert in_a("return pb_utils.is_model_ready('add')") is True


@pytest.mark.spec("srv-R24")
def test_load_and_unload_of_a_name_act_on_all_models_of_it(place):
    both = [(place.a, "READY"), (place.b, "READY")]
    assert place.index("add") == both
    assert place.server.request("POST", "/v2/repository/models/add/unload", {}).status == 200
    for full in ("team_a::add", "team_b::add"):
        place.server.wait_until(f"/v2/models/{full}/ready", 400)
    assert place.load("add") == 200
    assert place.index("add") == both
    for number, team in (0, "team_a"), (1, "team_b"):
        code = adding(number) if number else "raise ValueError('no')"
        write_model(place.directory / team / "models", "add", code, CONFIG)
    status, error = place.load("add")
    assert status == 400
    assert error.startswith(f"load failed for model '{place.a}::add': ")
    assert [place.answer("team_a::add"), place.answer("team_b::add")] == [1, 1], "the other one is loaded"
    for number, team in (1, "team_a"), (2, "team_b"):
        write_model(place.directory / team / "models", "add", adding(number), CONFIG)
    assert place.load("add") == 200
    assert [place.answer("team_a::add"), place.answer("team_b::add")] == [1, 2]
    brought = {"parameters": {"config": json.dumps({"backend": "python"})}}
    assert place.load("add", brought) == (400, place.ambiguous("add")), "whose configuration is it?"


@pytest.mark.spec("srv-R24")
def test_load_and_unload_act_on_one_of_two(place):
    assert place.unload("team_a::add") == 200
    # One of the two is left, so the name is enough, even for an ensemble whose own namespace has it no more.
    assert [place.answer("add"), place.answer("team_a::pipe")] == [2, 2]
    assert place.index("add")[1:] == [(place.b, "READY")]
    assert place.load("team_a::add") == 200
    assert [place.answer("team_a::add"), place.answer("team_a::pipe")] == [1, 1]
    in_a = caller(place.server, "team_a::caller")
    write_model(place.directory / "team_a" / "models", "add", adding(3), CONFIG)
    write_model(place.directory / "team_b" / "models", "add", adding(4), CONFIG)
    in_a("pb_utils.load_model('add')")
    assert [place.answer("team_a::add"), place.answer("team_b::add")] == [3, 2]
    tensors = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("IN", "OUT")]
    config = {
        "backend": "python",
        "input": tensors[:1],
        "output": tensors[1:],
        "parameters": {"x": {"string_value": "y"}},
    }
    override = {"parameters": {"config": json.dumps(config)}}
    assert place.load("only_b") == 200
    assert place.load("team_b::add", override) == 200
    assert [place.answer("team_a::add"), place.answer("team_b::add")] == [3, 4]
    assert place.server.get("/v2/models/team_b::add/config").json["parameters"] == {"x": {"string_value": "y"}}


@pytest.mark.spec("srv-M09")
@pytest.mark.spec("srv-R24")
def test_figures_traces_and_logs_keep_them_apart(place):
    write_model(
        place.directory / "team_a" / "models", "add", adding(1), CONFIG + 'metric_tags { key: "tag" value: "x" }'
    )
    assert place.load("team_a::add") == 200
    before = place.server.get("/v2/models/team_a::add/stats").json["model_stats"]
    assert [(row["name"], row["namespace"]) for row in before] == [("add", place.a)]
    assert place.answer("team_a::add") == 1
    after = place.server.get("/v2/models/stats").json["model_stats"]
    found = {row["namespace"]: row["inference_count"] for row in after if row["name"] == "add"}
    assert found[place.a] == before[0]["inference_count"] + 1
    labels = f'{{_tag="x",model="add",namespace="{place.a}",version="1"}}'
    assert place.server.metrics()[f"nv_inference_count{labels}"] == found[place.a]
    setting = place.server.request("POST", "/v2/models/team_a::add/trace/setting", {"trace_rate": "7"})
    assert setting.json["trace_rate"] == "7"
    assert place.server.get("/v2/models/team_b::add/trace/setting").json["trace_rate"] == "1"
    place.server.wait_for(f"successfully loaded '{place.a}::add' version 1")
    traces = place.directory / "traces.json"
    wait_until(lambda: {place.a, place.b} <= namespaces_in(traces), "the traces name no namespaces")


@pytest.mark.around("pybackend_tools")
def test_the_commands_name_one_of_two(place, capsys):
    url = f"--url={place.server.url}"
    assert run(["load", "team_b::add", url, "--json"]) == 0
    row = {"name": "add", "namespace": place.b, "version": "1", "state": "READY"}
    assert json.loads(capsys.readouterr().out) == [row]
    assert run(["status", url]) == 0
    assert "NAMESPACE" in capsys.readouterr().out.splitlines()[0]
    assert run(["infer", "team_b::only_b", url, "--input=IN=[1]"]) == 0
    assert "21" in capsys.readouterr().out
    assert run(["unload", "add", url]) == 0
    capsys.readouterr()
    assert run(["load", "add", url, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(each["namespace"], each["state"]) for each in rows] == [(place.a, "READY"), (place.b, "READY")]
    repositories = [f"--model-repository={each}" for each in (place.a, place.b)]
    assert run(["check", *repositories]) == 1
    assert run(["check", "--model-namespacing=true", *repositories]) == 0
    assert f"{place.a}::choosing: ok" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.spec("srv-R24")
def test_mode_poll_follows_each_repository(tmp_path):
    """One repository lies in the other, so that the inner one looks like a model there, which cannot be served."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    write_model(outer, "add", adding(1), CONFIG)
    write_model(inner, "add", adding(2), CONFIG)
    flags = ("--model-namespacing", "--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with serving(outer, inner, flags=flags, ready=False) as server:
        place = Place(tmp_path, server)
        server.wait_until("/v2/models/inner::add/ready", 200)
        server.wait_until("/v2/models/outer::add/ready", 200)
        assert [place.answer("outer::add"), place.answer("inner::add"), place.answer("add")[0]] == [1, 2, 400]
        write_model(inner, "add", adding(3), CONFIG)
        wait_until(lambda: place.answer("inner::add") == 3, lambda: server.output, 60)
        assert place.answer("outer::add") == 1
        (outer / "add").rename(tmp_path / "add")
        wait_until(lambda: place.answer("add") == 3, lambda: server.output, 60)
