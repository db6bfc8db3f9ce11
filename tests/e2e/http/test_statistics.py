"""Statistics of models: what requests add to them over both protocols, and that the metrics page tells the same."""

import http.client
import json
import time

import pytest
import tritonclient.grpc

from tests.e2e.http.models import PROBE
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, copy_model, identity_config, tensors, write_model
from tests.support.server import serving

NOTHING = {"count": 0, "ns": 0}
KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
RESPONSE_KINDS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
TENSOR = "TYPE_FP32"
PATIENT = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]))
            while not request.is_cancelled():
                threading.Event().wait(0.005)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BATCHED = identity_config(TENSOR, "[ 1 ]", "max_batch_size: 8")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of its own; each test has a model for itself."""
    repository = tmp_path_factory.mktemp("statistics")
    for version in (1, 3):
        write_model(
            repository, "fresh", IDENTITY, identity_config(TENSOR, extra="version_policy { all {} }"), version=version
        )
    write_model(repository, "batched", IDENTITY, BATCHED)
    write_model(repository, "cached", IDENTITY, BATCHED + "response_cache { enable: true }")
    write_model(repository, "part", IDENTITY, BATCHED)
    probe = f"""
        backend: "python" dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}
        input [ {tensors(COMMAND=("TYPE_STRING", [1]))} ]
        output [ {tensors(SEEN=("TYPE_STRING", [1]), BLOB=("TYPE_STRING", [1]))} ]
    """
    write_model(repository, "failing", PROBE, probe)
    write_model(repository, "broken", "raise ImportError('on purpose')", identity_config())
    copy_model(repository, "repeat")
    write_model(
        repository, "patient", PATIENT, f"{identity_config(TENSOR)} model_transaction_policy {{ decoupled: true }}"
    )
    matrix = (TENSOR, [1])
    write_ensemble(
        repository,
        "whole",
        [step("part", {"IN": "IN"}, {"OUT": "OUT"})],
        tensors(IN=matrix),
        tensors(OUT=matrix),
        extra="max_batch_size: 8",
    )
    flags = ("--exit-on-error=false", "--cache-config=local,size=1000000")
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for(r"fresh +\| 3 ")
        yield server


def infer(server, model, batch=1, value=0):
    tensor = {"name": "IN", "datatype": "FP32", "shape": [batch, 1], "data": [value] * batch}
    return server.infer(model, {"inputs": [tensor]})


def command(server, **members):
    tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [json.dumps(members)]}
    return server.infer("failing", {"inputs": [tensor]})


def of(server, model, version=""):
    """The statistics of a model's only version."""
    found = server.get(f"/v2/models/{model}{version and f'/versions/{version}'}/stats")
    assert found.status == 200
    (statistics,) = found.json["model_stats"]
    return statistics


@pytest.mark.spec("srv-H23")
def test_all_one_and_a_version(server):
    every = server.get("/v2/models/stats")
    assert every.headers["content-type"] == "application/json"
    names = [(each["name"], each["version"]) for each in every.json["model_stats"]]
    assert names == sorted(names)
    assert [name for name in names if name[0] == "fresh"] == [("fresh", "1"), ("fresh", "3")]
    assert {name for name, _ in names} == {
        "fresh",
        "batched",
        "cached",
        "part",
        "failing",
        "patient",
        "repeat",
        "whole",
    }
    of_one = server.get("/v2/models/fresh/stats").json["model_stats"]
    assert [each["version"] for each in of_one] == ["1", "3"]
    assert of(server, "fresh", "3") == {
        "name": "fresh",
        "version": "3",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(KINDS, NOTHING),
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


@pytest.mark.spec("srv-H23")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("unknown", "requested model 'unknown' is not available"),
        ("broken", "requested model 'broken' is not available"),
        ("broken/versions/1", "requested model 'broken' is not available"),
        ("fresh/versions/2", "requested model version is not available for model 'fresh'"),
        ("fresh/versions/99999999999999999999", "requested model version is not available for model 'fresh'"),
    ],
)
def test_versions_that_are_not_there(server, path, text):
    found = server.get(f"/v2/models/{path}/stats")
    assert found.status == 400
    assert found.error == text


@pytest.mark.spec("srv-H23", "srv-M11")
def test_requests_inferences_executions(server):
    before_ms = time.time_ns() // 1_000_000
    for batch in (1, 4, 1):
        assert infer(server, "batched", batch).status == 200
    found = of(server, "batched")
    assert before_ms - 1 <= found["last_inference"] <= time.time_ns() // 1_000_000 + 1
    assert (found["inference_count"], found["execution_count"]) == (6, 3)
    figures = found["inference_stats"]
    assert {kind: figures[kind]["count"] for kind in KINDS} == {
        **dict.fromkeys(KINDS, 3),
        "fail": 0,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert 0 < sum(figures[part]["ns"] for part in parts) == figures["success"]["ns"]
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]] == [(1, 2), (4, 1)]
    for part in ("compute_input", "compute_infer", "compute_output"):
        # Without a batcher a request is an execution, so both have the same times.
        assert sum(each[part]["ns"] for each in found["batch_stats"]) == figures[part]["ns"]


@pytest.mark.spec("srv-M11")
def test_the_metrics_page_tells_the_same(server):
    assert infer(server, "batched", 2).status == 200
    metrics = server.metrics()
    for each in server.get("/v2/models/stats").json["model_stats"]:
        labels = f'model="{each["name"]}",version="{each["version"]}"'
        figures = each["inference_stats"]
        assert metrics[f"nv_inference_request_success{{{labels}}}"] == figures["success"]["count"]
        assert metrics[f"nv_inference_count{{{labels}}}"] == each["inference_count"]
        assert metrics[f"nv_inference_exec_count{{{labels}}}"] == each["execution_count"]
        failures = sum(
            value
            for name, value in metrics.items()
            if name.startswith(f'nv_inference_request_failure{{model="{each["name"]}"')
            and f'version="{each["version"]}"' in name
        )
        assert failures == figures["fail"]["count"]
        assert metrics[f"nv_inference_request_duration_us{{{labels}}}"] == figures["success"]["ns"] // 1000
        for part in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert metrics[f"nv_inference_{part}_duration_us{{{labels}}}"] == figures[part]["ns"] // 1000


def test_failures(server):
    assert command(server, **{"raise": "oh"}).status == 500
    assert command(server).status == 200
    found = of(server, "failing")
    assert found["inference_stats"]["fail"]["count"] == 1
    assert found["inference_stats"]["fail"]["ns"] > 0
    assert found["inference_stats"]["success"]["count"] == 1
    # An execution without a successful request is none.
    assert (found["execution_count"], found["inference_count"]) == (1, 1)


def test_answers_from_the_cache(server):
    for _ in range(3):
        assert infer(server, "cached", value=7).status == 200
    found = of(server, "cached")
    counts = {kind: figure["count"] for kind, figure in found["inference_stats"].items()}
    assert counts == {
        "success": 3,
        "fail": 0,
        "queue": 3,
        "compute_input": 1,
        "compute_infer": 1,
        "compute_output": 1,
        "cache_hit": 2,
        "cache_miss": 1,
    }
    assert (found["inference_count"], found["execution_count"]) == (1, 1)
    assert found["inference_stats"]["cache_hit"]["ns"] > 0


def test_an_ensemble_and_its_part(server):
    for batch in (2, 3):
        assert infer(server, "whole", batch).status == 200
    whole, part = of(server, "whole"), of(server, "part")
    for found in (whole, part):
        assert (found["inference_count"], found["execution_count"]) == (5, 2)
        assert found["inference_stats"]["success"]["count"] == 2
        assert [each["batch_size"] for each in found["batch_stats"]] == [2, 3]
    assert whole["inference_stats"]["success"]["ns"] > part["inference_stats"]["success"]["ns"]
    for kind in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert whole["inference_stats"][kind] == {"count": 2, "ns": 0}


def _response_counts(found):
    """By place, the kinds of responses that there were."""
    return {
        place: {kind: figures[kind]["count"] for kind in RESPONSE_KINDS if figures[kind]["count"]}
        for place, figures in found["response_stats"].items()
    }


@pytest.mark.spec("srv-M12")
def test_responses_of_a_stream_by_their_place(server):
    def stream(*numbers):
        answer = server.request("POST", "/v2/models/repeat/generate_stream", {"IN": list(numbers)})
        assert answer.status == 200

    result = {"compute_infer": 1, "compute_output": 1, "success": 1}
    stream(2)
    found = of(server, "repeat")
    assert _response_counts(found) == {"0": result, "1": result, "2": {"empty_response": 1}}
    first = found["response_stats"]["0"]
    assert first["success"]["ns"] == first["compute_infer"]["ns"] + first["compute_output"]["ns"] > 0
    stream(2, 1, 1)  # the second response is an error, and the last
    found = of(server, "repeat")
    assert _response_counts(found) == {
        "0": dict.fromkeys(result, 2),
        "1": {**result, "fail": 1},
        "2": {"empty_response": 1},
    }
    assert (found["inference_stats"]["success"]["count"], found["inference_stats"]["fail"]["count"]) == (1, 1)


@pytest.mark.spec("srv-M12")
def test_responses_to_a_client_that_left(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v2/models/patient/generate_stream", '{"IN": [1]}')
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.sock.close()
    connection.close()
    wait_until(lambda: "1" in of(server, "patient")["response_stats"], "the end of the stream is counted")
    assert _response_counts(of(server, "patient"))["1"] == {"cancel": 1}


@pytest.mark.spec("srv-G01")
def test_the_same_over_grpc(server):
    assert infer(server, "part").status == 200
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        assert "statistics" in client.get_server_metadata().extensions
        every = client.get_inference_statistics(as_json=True)["model_stats"]
        over_http = server.get("/v2/models/stats").json["model_stats"]
        assert [_plain(each) for each in every] == [_plain(each) for each in over_http]
        (one,) = client.get_inference_statistics("fresh", "3", as_json=True)["model_stats"]
        assert (one["name"], one["version"]) == ("fresh", "3")
        for version, text in (
            ("2", "requested model version is not available for model 'fresh'"),
            ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
            ("x", "failed to get model version from specified version string 'x'"),
        ):
            with pytest.raises(tritonclient.utils.InferenceServerException) as caught:
                client.get_inference_statistics("fresh", version)
            assert caught.value.message().startswith(text)
            assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def _plain(value, name=""):
    """A document without what one of the notations leaves out: zeros, and the quotes around numbers."""
    if isinstance(value, dict):
        plain = {name: _plain(each, name) for name, each in value.items()}
        return {name: each for name, each in plain.items() if each not in ({}, [], 0)}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if name == "last_inference":
        return bool(int(value))  # the clocks of two readings may differ by a millisecond
    return int(value) if str(value).isdecimal() else value
