"""Responses that need no execution: what is the same request, what is kept, and what is counted."""

import json

import numpy as np
import pytest

from tests.support.ensembles import step, write_ensemble
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

COUNTER = """
import json


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.executions += 1
            text = json.dumps([self.executions, request.request_id()]).encode()
            outputs = [
                pb_utils.Tensor("COUNT", np.array([[text]], object)),
                pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()),
            ]
            if pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().ravel()[:1] == [-1]:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("minus one")))
                continue
            wanted = [output for output in outputs if output.name() in request.requested_output_names()]
            responses.append(pb_utils.InferenceResponse(wanted, parameters={"answered": True}))
        return responses
"""

CONFIG = f"""
backend: "python"
max_batch_size: 4
input [ {tensors(IN=("TYPE_FP32", [-1, -1]))} ]
output [ {tensors(COUNT=("TYPE_STRING", [1]), OUT=("TYPE_FP32", [-1, -1]))} ]
"""

CACHED = "response_cache { enable: true }"

SIZE_BYTES = 20_000_000


def write_chain(repository, name, *parts):
    """An ensemble that runs one model, or two, one after the other; it has a cache."""
    first, last = parts[0], parts[-1]
    steps = [step(first, {"IN": "IN"}, {"OUT": "x"}), step(last, {"IN": "x"}, {"COUNT": "COUNT", "OUT": "OUT"})]
    matrix = ("TYPE_FP32", [-1, -1])
    outputs = tensors(COUNT=("TYPE_STRING", [1]), OUT=matrix)
    write_ensemble(repository, name, steps, tensors(IN=matrix), outputs, extra=f"max_batch_size: 4 {CACHED}")


@served(flags=(f"--cache-config=local,size={SIZE_BYTES}",))
def server(repository):
    write_model(repository, "cached", COUNTER, CONFIG + CACHED)
    write_model(repository, "other", COUNTER, CONFIG + CACHED)
    write_model(repository, "batching", COUNTER, CONFIG + CACHED + " dynamic_batching { }")
    write_model(repository, "uncached", COUNTER, CONFIG)
    write_chain(repository, "chain", "uncached")


def array(value, *shape):
    return np.full(shape or (1, 2, 3), value, np.float32)


def count(server, model, value, **members):
    """Which execution of the model's an answer comes from."""
    return json.loads(infer(server, model, {"IN": value}, **members)["COUNT"][0, 0])[0]


def metric(server, name, model=None):
    labels = f'{{model="{model}",version="1"}}' if model else ""
    return server.metrics()[name + labels]


@pytest.mark.spec("srv-R21")
@pytest.mark.parametrize("model", ["cached", "batching"])
def test_the_same_request_is_executed_once(server, model):
    names = ("nv_inference_exec_count", "nv_inference_count", "nv_inference_request_success")
    before = {name: metric(server, name, model) for name in names}
    first = infer(server, model, {"IN": array(1)}, id="a")
    second = infer(server, model, {"IN": array(1)}, id="b")
    assert second["COUNT"].tolist() == first["COUNT"].tolist()
    assert second["OUT"].tolist() == array(1).tolist()
    assert (first.document["id"], second.document["id"]) == ("a", "b")
    assert second.document["parameters"] == {"answered": True}
    after = {name: metric(server, name, model) - before[name] for name in names}
    assert list(after.values()) == [1, 1, 2]


@pytest.mark.spec("srv-R21")
def test_what_makes_a_request_another_one(server):
    value = array(2)
    different = [
        count(server, "cached", value),
        count(server, "cached", array(2, 1, 3, 2)),  # the same bytes in another shape
        count(server, "cached", array(3)),
        count(server, "cached", value, parameters={"k": 1}),
        count(server, "cached", value, parameters={"k": True}),
        count(server, "cached", value, parameters={"k": "1"}),
        count(server, "cached", value, outputs=[{"name": "COUNT"}]),
        count(server, "cached", value, outputs=[{"name": "COUNT"}, {"name": "OUT"}]),
    ]
    assert len(set(different)) == len(different)
    swapped = [{"name": "OUT"}, {"name": "COUNT"}]
    assert count(server, "cached", value, outputs=swapped) == different[-1]
    assert count(server, "cached", value, parameters={"k": True}) == different[4]
    assert count(server, "cached", value, id="x") == different[0]


def test_models_do_not_share(server):
    ours = count(server, "cached", array(4))
    metric_before = metric(server, "nv_inference_exec_count", "other")
    count(server, "other", array(4))
    assert metric(server, "nv_inference_exec_count", "other") == metric_before + 1
    assert count(server, "cached", array(4)) == ours


@pytest.mark.spec("srv-R21", "srv-M04")
def test_an_ensemble_is_answered_without_its_parts(server):
    executed = metric(server, "nv_inference_exec_count", "uncached")
    first = infer(server, "chain", {"IN": array(9)}, id="a")
    second = infer(server, "chain", {"IN": array(9)}, id="b")
    assert second["COUNT"].tolist() == first["COUNT"].tolist()
    assert (first.document["id"], second.document["id"]) == ("a", "b")
    assert metric(server, "nv_inference_exec_count", "uncached") == executed + 2
    assert metric(server, "nv_inference_exec_count", "chain") == 1
    assert metric(server, "nv_inference_request_success", "chain") == 2
    assert metric(server, "nv_cache_num_hits_per_model", "chain") == 1
    assert metric(server, "nv_cache_num_misses_per_model", "chain") == 1


def test_without_response_cache_every_request_is_executed(server):
    assert count(server, "uncached", array(1)) != count(server, "uncached", array(1))
    assert 'nv_cache_num_hits_per_model{model="uncached",version="1"}' not in server.metrics()


def test_errors_are_not_kept(server):
    for _ in range(2):
        assert infer(server, "cached", {"IN": array(-1)}).error == "minus one"
    misses = metric(server, "nv_cache_num_misses_per_model", "cached")
    assert infer(server, "cached", {"IN": array(-1)}).error == "minus one"
    assert metric(server, "nv_cache_num_misses_per_model", "cached") == misses + 1


@pytest.mark.spec("srv-M04")
def test_metrics(server):
    def figures():
        metrics = server.metrics()
        own = {key: metrics[f'nv_cache_{key}_per_model{{model="other",version="1"}}'] for key in own_names}
        return own, {key: metrics[f"nv_cache_{key}"] for key in names}

    own_names = ("num_hits", "num_misses", "hit_duration", "miss_duration")
    names = ("num_hits", "num_misses", "num_lookups", "num_entries", "util", "num_evictions", "lookup_duration")
    names += ("insertion_duration",)
    own_before, before = figures()
    for _ in range(3):
        count(server, "other", array(5, 1, 300, 300))
    own, after = figures()
    assert (own["num_hits"] - own_before["num_hits"], own["num_misses"] - own_before["num_misses"]) == (2, 1)
    assert own["hit_duration"] > own_before["hit_duration"]
    assert own["miss_duration"] > own_before["miss_duration"]
    grown = {key: after[key] - before[key] for key in names}
    assert (grown["num_hits"], grown["num_misses"], grown["num_lookups"], grown["num_entries"]) == (2, 1, 3, 1)
    assert 300 * 300 * 4 <= grown["util"] * SIZE_BYTES < 300 * 300 * 4 + 2000


@pytest.mark.spec("srv-R21")
def test_what_was_not_asked_for_longest_makes_room(server):
    big = [array(100 + index, 1, 1000, 1200) for index in range(4)]  # 4.8 MB each, in a cache of 20 MB
    evictions = metric(server, "nv_cache_num_evictions")
    numbers = [count(server, "cached", value) for value in big]
    assert count(server, "cached", big[0]) == numbers[0]
    fifth = count(server, "cached", array(104, 1, 1000, 1200))
    assert metric(server, "nv_cache_num_evictions") > evictions
    assert count(server, "cached", big[0]) == numbers[0]
    assert count(server, "cached", array(104, 1, 1000, 1200)) == fifth
    assert count(server, "cached", big[1]) != numbers[1]
    assert metric(server, "nv_cache_util") <= 1


def test_a_response_larger_than_the_cache_is_not_kept(server):
    huge = array(7, 1, 2300, 2300)
    entries = metric(server, "nv_cache_num_entries")
    assert count(server, "cached", huge) != count(server, "cached", huge)
    assert metric(server, "nv_cache_num_entries") == entries


def test_a_large_request_is_found_too(server):
    large = array(8, 1, 700, 700)  # digested in a thread
    first = count(server, "cached", large)
    assert count(server, "cached", large) == first


@pytest.mark.spec("srv-R21")
def test_combinations_that_are_refused(tmp_path):
    write_model(tmp_path, "streaming", COUNTER, CONFIG + CACHED + "model_transaction_policy { decoupled: true }")
    write_model(tmp_path, "sequences", COUNTER, CONFIG + CACHED + "sequence_batching { }")
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        server.wait_for(
            r"streaming *\| 1 *\| UNAVAILABLE: Invalid argument: Response Cache does not currently support model streaming "
            "with 'decoupled' transaction policy. Please disable the response cache."
        )
        server.wait_for(
            r"sequences *\| 1 *\| UNAVAILABLE: Invalid argument: Response Cache does not currently support model sequences "
            "with sequence batching scheduler. Please disable the response cache."
        )


@pytest.mark.spec("srv-R21")
def test_ensembles_with_parts_that_cannot_be_cached(tmp_path):
    write_model(tmp_path, "streaming", COUNTER, CONFIG + "model_transaction_policy { decoupled: true }")
    write_model(tmp_path, "sequences", COUNTER, CONFIG + "sequence_batching { }")
    write_model(tmp_path, "uncached", COUNTER, CONFIG)
    write_chain(tmp_path, "streams", "uncached", "streaming")
    write_chain(tmp_path, "remembers", "sequences")
    write_ensemble(
        tmp_path,
        "around",
        [step("within", {"IN": "IN"}, {"OUT": "OUT"})],
        tensors(IN=("TYPE_FP32", [-1, -1])),
        tensors(OUT=("TYPE_FP32", [-1, -1])),
        extra=CACHED,
    )
    write_chain(tmp_path, "within", "sequences")
    config = tmp_path / "within" / "config.pbtxt"
    config.write_text(config.read_text().replace(CACHED, ""))
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        text = r"{0} *\| 1 *\| UNAVAILABLE: Invalid argument: Response Cache does not currently support model {0} with {1}. Please disable the response cache. Its part '{2}' is such a model"  # fmt: skip
        server.wait_for(text.format("streams", "'decoupled' transaction policy", "streaming"))
        server.wait_for(text.format("remembers", "sequence batching scheduler", "sequences"))
        server.wait_for(text.format("around", "sequence batching scheduler", "sequences"))
        assert server.get("/v2/models/within/ready").status == 200


def test_a_server_without_a_cache_says_so(tmp_path):
    write_model(tmp_path, "cached", COUNTER, CONFIG + CACHED)
    write_chain(tmp_path, "chain", "cached")
    with serving(tmp_path) as server:
        server.wait_for("model 'cached' enables response_cache, but the server has no cache, every request is executed")
        server.wait_for("model 'chain' enables response_cache, but the server has no cache, every request is executed")
        assert count(server, "cached", array(1)) != count(server, "cached", array(1))
        assert "nv_cache_util" not in server.metrics()


def test_a_model_that_is_loaded_anew_is_asked_anew(tmp_path):
    write_model(tmp_path, "asker", ASKER, ASKER_CONFIG)
    directory = write_model(tmp_path, "cached", COUNTER, CONFIG + CACHED)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--response-cache-byte-size=1000000")
    with serving(tmp_path, flags=flags) as server:
        assert count(server, "cached", array(1)) == count(server, "cached", array(1)) == 1
        file = directory / "1" / "model.py"
        file.write_text(file.read_text().replace("self.executions = 0", "self.executions = 50"))
        infer(server, "asker", {"NAME": np.array([b"cached"], object)})
        assert count(server, "cached", array(1)) == 51


ASKER = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()[0].decode()
            pb_utils.load_model(model_name=name)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
ASKER_CONFIG = """
backend: "python"
input { name: "NAME" data_type: TYPE_STRING dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""
