"""Ensembles as clients and other models see them: over HTTP, by calls from models, and when models load and unload
parts."""

import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.support.callers import caller, write_caller, write_targets
from tests.support.connection import connected
from tests.support.ensembles import step, write_ensemble
from tests.support.gates import Gate, wait_until
from tests.support.inference import infer, infer_message
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving
from tests.support.streams import function, write_streams

FP32, TEXT, CODE = ("TYPE_FP32", [-1]), ("TYPE_STRING", [-1]), ("TYPE_STRING", [1])


TOTAL = """
class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        key, array = request.correlation_id(), request.inputs()[0].as_numpy()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.totals[key] = 0
        self.totals[key] = self.totals.get(key, 0) + array  # an empty slot has no key
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.totals[key])])
"""


def write_all(repository):
    config = f'backend: "python" max_batch_size: 2 input [ {tensors(IN=FP32)} ] output [ {tensors(OUT=FP32)} ]'
    write_model(
        repository, "total", TOTAL, f"{config} sequence_batching {{ max_sequence_idle_microseconds: 60000000 }}"
    )
    twice = [step("total", {"IN": "IN"}, {"OUT": "x"}), step("total_too", {"IN": "x"}, {"OUT": "OUT"})]
    write_model(
        repository,
        "total_too",
        TOTAL,
        f"{config} sequence_batching {{ oldest {{ }} max_sequence_idle_microseconds: 60000000 }}",
    )
    write_ensemble(repository, "remembers", twice, extra="max_batch_size: 2")
    write_targets(repository, "double", "repeat")
    write_caller(repository)
    write_caller(repository, "other")
    write_streams(repository, "lab", "instance_group { count: 1 kind: KIND_CPU }")
    one = step("double", {"IN": "IN"}, {"OUT": "x"})
    write_ensemble(repository, "quadruple", [one, step("double", {"IN": "x"}, {"OUT": "OUT"})], extra='metric_tags { key: "team" value: "a" }')  # fmt: skip
    write_ensemble(repository, "stream", [step("repeat", {"IN": "IN"}, {"OUT": "x"}), step("double", {"IN": "x"}, {"OUT": "OUT"})])  # fmt: skip
    code = tensors(CODE=CODE)
    write_ensemble(repository, "coded", [step("lab", {"CODE": "CODE"}, {"TEXT": "TEXT"})], code, tensors(TEXT=TEXT))
    for name, last in (("of_caller", "caller"), ("of_other", "other")):
        write_ensemble(
            repository,
            name,
            [one, step(last, {"CODE": "CODE", "IN": "x"}, {"JSON": "JSON"})],
            tensors(IN=FP32, CODE=CODE),
            tensors(JSON=CODE),
        )


@served(flags=("--model-control-mode=explicit", "--load-model=*"))
def server(repository):
    write_all(repository)


@pytest.fixture(scope="module")
def run(server):
    return caller(server)


# --- HTTP -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize("size", [3, 5000, 4_000_000])
def test_over_http(server, size):
    x = np.arange(size, dtype=np.float32)
    answer = infer(server, "quadruple", {"IN": x}, id="r1")
    assert (answer["OUT"] == 4 * x).all()
    assert {key: answer.document[key] for key in ("model_name", "model_version", "id")} == {
        "model_name": "quadruple",
        "model_version": "1",
        "id": "r1",
    }
    assert "parameters" not in answer.document


@pytest.mark.spec("srv-R17")
def test_over_http_as_json(server):
    reply = server.infer("quadruple", {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1, 2]}]})
    assert reply.json["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [2], "data": [4.0, 8.0]}]


def test_what_the_server_says_of_an_ensemble(server):
    assert server.get("/v2/models/quadruple").json == {
        "name": "quadruple",
        "versions": ["1"],
        "platform": "ensemble",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1]}],
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1]}],
    }
    config = server.get("/v2/models/quadruple/config").json
    assert (config["platform"], config["backend"], config["instance_group"]) == ("ensemble", "", [])
    assert [each["model_name"] for each in config["ensemble_scheduling"]["step"]] == ["double", "double"]
    assert "optimization" not in config
    assert "model_transaction_policy" not in config
    assert server.get("/v2/models/quadruple/ready").status == 200


@pytest.mark.parametrize("route", ["sandbox", "environment"])
def test_an_ensemble_has_no_process_to_tell_of(server, route, snapshot):
    reply = server.get(f"/v2/models/quadruple/{route}")
    assert reply.status == 404
    assert reply.error == snapshot


@pytest.mark.spec("srv-R18", "srv-H35")
def test_an_ensemble_that_streams_over_http(server):
    assert server.get("/v2/models/stream/config").json["model_transaction_policy"] == {"decoupled": True}
    answer = infer(server, "stream", {"IN": np.array([2], np.float32)})
    assert answer.status == 501
    assert answer.error.startswith("HTTP end point doesn't support models with decoupled transaction policy")


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(
    ("code", "status"), [("INTERNAL", 500), ("INVALID_ARG", 400), ("UNAVAILABLE", 503), ("NOT_FOUND", 404)]
)
def test_the_status_of_an_error(server, code, status):
    fails = function(f"return [failed('no luck', pb_utils.TritonError.{code})]")
    answer = infer(server, "coded", {"CODE": fails})
    assert (answer.status, answer.error) == (status, "in ensemble 'coded', no luck")


@pytest.mark.spec("srv-R17", "srv-H21")
def test_sequences_run_through_the_parts_that_have_them(server):
    def ask(value, **parameters):
        answer = infer(server, "remembers", {"IN": np.array([[value]], np.float32)}, parameters=parameters)
        return answer["OUT"].ravel().tolist() if answer.status == 200 else answer.error

    missing = "inference request for sequence 7 to model 'total' must specify the START flag on the first request"
    assert ask(1).startswith("in ensemble 'remembers', inference request to model 'total' must specify a non-zero or")
    assert ask(1, sequence_id=7).startswith(f"in ensemble 'remembers', {missing}")
    assert ask(1, sequence_id=7, sequence_start=True) == [1]
    assert ask(5, sequence_id=8, sequence_start=True) == [5]
    assert ask(2, sequence_id=7) == [1 + 3]
    assert ask(3, sequence_id=7, sequence_end=True) == [1 + 3 + 6]
    assert missing in ask(1, sequence_id=7)


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({}, {"sequence_id": 7, "sequence_start": True, "sequence_end": False}),
        ({"other": "x"}, {"sequence_id": 7, "sequence_start": True, "sequence_end": False}),
        (
            {"sequence_start": False, "sequence_end": True},
            {"sequence_id": 7, "sequence_start": False, "sequence_end": True},
        ),
        ({"sequence_id": "next"}, {"sequence_id": "next", "sequence_start": True, "sequence_end": False}),
    ],
    ids=["nothing", "something else", "its ends", "another one"],
)
def test_clients_read_their_sequence_or_that_which_a_step_names(server, named, told):
    """And no other parameters of responses; over both protocols."""
    output = 'pb_utils.Tensor("TEXT", np.array(["x"], object))'
    code = function(f"return [pb_utils.InferenceResponse([{output}], parameters={named!r})]")
    answer = infer(server, "coded", {"CODE": code}, parameters={"sequence_id": 7, "sequence_start": True})
    assert answer.document.get("parameters", {}) == told
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        tensor = grpc_client.InferInput("CODE", [1], "BYTES")
        tensor.set_data_from_numpy(code)
        response = client.infer("coded", [tensor], sequence_id=7, sequence_start=True).get_response()
    assert {
        name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in response.parameters.items()
    } == told


def test_bad_input_is_the_ensemble_s_own_matter(server):
    answer = infer(server, "quadruple", {"IN": np.zeros(3, np.float64)})
    assert answer.error == (
        "[request id: <id_unknown>] inference input 'IN' data-type is 'FP64', but model 'quadruple' expects 'FP32': "
        "`.astype(np.float32)` makes it"
    )


@pytest.mark.spec("srv-R17", "srv-M02")
def test_metrics(server):
    labels = '{_team="a",model="quadruple",version="1"}'
    before = server.metrics()
    infer(server, "quadruple", {"IN": np.zeros(3, np.float32)})
    infer(server, "coded", {"CODE": function("raise ValueError")})
    after = server.metrics()

    def grown(name):
        return after[name] - before[name]

    assert grown(f"nv_inference_request_success{labels}") == 1
    assert grown('nv_inference_request_success{model="double",version="1"}') == 2
    assert grown(f"nv_inference_exec_count{labels}") == 1
    assert grown(f"nv_inference_count{labels}") == 1
    assert grown(f"nv_inference_request_duration_us{labels}") > 0
    assert grown(f"nv_inference_compute_infer_duration_us{labels}") == 0
    assert after[f"nv_inference_pending_request_count{labels}"] == 0
    failed = 'nv_inference_request_failure{{model="{}",reason="{}",version="1"}}'
    assert grown(failed.format("coded", "OTHER")) == 1
    assert grown(failed.format("coded", "BACKEND")) == 0
    assert grown(failed.format("lab", "BACKEND")) == 1


@pytest.mark.spec("srv-H49")
def test_a_client_that_goes_away(server, tmp_path):
    gate = Gate(tmp_path, "here")
    waits = function(
        f"""
        mark({str(tmp_path)!r}, "here.reached")
        while not request.is_cancelled():
            time.sleep(0.005)
        mark({str(tmp_path)!r}, "seen")
        return [text("late")]
        """
    )
    with connected(server.port) as connection:
        connection.send(infer_message("coded", {"CODE": waits}))
        gate.wait_reached()
    wait_until((tmp_path / "seen").exists, "the step never learned of it")


# --- calls ----------------------------------------------------------------------------------------------------------


def test_a_model_calls_an_ensemble(run):
    assert run("return value(call('quadruple', ['OUT'], IN=[1, 2]).exec())") == [4, 8]
    code = """
    response = call('quadruple', ['OUT'], IN=np.arange(100_000, dtype=np.float32)).exec()
    return bool((pb_utils.get_output_tensor_by_name(response, 'OUT').as_numpy() == 4 * np.arange(100_000)).all())
    """
    assert run(code) is True


@pytest.mark.spec("srv-R18")
def test_a_model_calls_an_ensemble_that_streams(run):
    code = "return [seen(response) for response in call('stream', ['OUT'], IN=[3]).exec(decoupled=True)]"
    assert run(code) == [*({"OUT": [2 * i]} for i in range(3)), {}]
    refused = run("return failure(call('stream', ['OUT'], IN=[3]).exec())")
    assert refused[1].startswith("Model stream is using the decoupled.")


def test_a_model_in_an_ensemble_calls_another_one(server):
    code = np.array([b"return [IN.tolist(), value(call('quadruple', ['OUT'], IN=IN).exec())]"], object)
    answer = infer(server, "of_caller", {"IN": np.array([1, 2], np.float32), "CODE": code})
    assert json.loads(answer["JSON"][0]) == [[2, 4], [8, 16]]


def test_an_ensemble_that_waits_for_whoever_calls_it(run, snapshot):
    """Its second step needs the only instance of the model that waits for the ensemble."""
    code, text = run("return failure(call('of_caller', ['JSON'], IN=[1], CODE=['return 1']).exec())")
    assert code == "UNAVAILABLE"
    assert text == snapshot
    assert "caller -> of_caller -> caller" in text
    assert run("return value(call('quadruple', ['OUT'], IN=[1, 2]).exec())") == [4, 8]


def test_ensembles_that_wait_for_each_other(run, snapshot):
    """Two models, each with one instance, call ensembles that need the other one."""
    inner = "return failure(call('of_caller', ['JSON'], IN=[1], CODE=['return 1']).exec())"
    found = run(f"return seen(call('of_other', ['JSON'], IN=[1], CODE=[{inner!r}]).exec())")
    code, text = json.loads(found["JSON"][0])
    assert code == "UNAVAILABLE"
    assert text == snapshot
    assert "other -> of_caller -> caller -> of_other -> other" in text


# --- models that control models -------------------------------------------------------------------------------------


@pytest.mark.spec("srv-R19")
def test_a_model_unloads_a_part_and_brings_it_back(server, run):
    assert run("return pb_utils.is_model_ready('quadruple')") is True
    assert run("pb_utils.unload_model('double')\nreturn pb_utils.is_model_ready('quadruple')") is False
    assert server.get("/v2/models/quadruple/ready").status == 400
    answer = infer(server, "quadruple", {"IN": np.zeros(1, np.float32)})
    assert answer.status == 404
    assert "ensemble 'quadruple' depends on 'double' which has no loaded version" in answer.error
    code, text = run("return failure(call('quadruple', ['OUT'], IN=[1]).exec())")
    assert code == "UNAVAILABLE"
    assert "ensemble 'quadruple' depends on 'double' which has no loaded version. 'double' was unloaded" in text
    assert run("pb_utils.load_model('double')\nreturn pb_utils.is_model_ready('quadruple')") is True
    assert run("return value(call('quadruple', ['OUT'], IN=[1]).exec())") == [4]
    assert server.get("/v2/models/quadruple/ready").status == 200


@pytest.mark.spec("srv-H28")
def test_a_model_loads_and_unloads_an_ensemble_with_its_parts(tmp_path):
    write_all(tmp_path)
    flags = ("--model-control-mode=explicit", "--load-model=caller")
    with serving(tmp_path, flags=flags) as server:
        run = caller(server)
        ready = "return [pb_utils.is_model_ready(name) for name in ('quadruple', 'double')]"
        assert run(f"pb_utils.load_model('quadruple')\n{ready}") == [True, True]
        run("pb_utils.unload_model('quadruple', unload_dependents=True)")
        wait_until(lambda: run(ready) == [False, False], "the part stays")


def test_the_log_tells_how_ensembles_came_up(server):
    server.wait_for(r"loading: quadruple:1\W")
    server.wait_for(r"successfully loaded 'quadruple' version 1 in \d+\.\d\d s\W")
    server.wait_for(r"quadruple +\| 1 +\| READY")
