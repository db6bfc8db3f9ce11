"""What flags and configurations change on the metrics page: summaries, histograms, families that are off, the port."""

import http.client
import json
import math
import re

import pytest

from tests.support.ensembles import step, write_ensemble
from tests.support.gates import wait_until
from tests.support.machine import without_gpu
from tests.support.repositories import IDENTITY, copy_model, identity_config, tensors, write_model
from tests.support.served import served
from tests.support.server import serving

SUMMARIES = ("request", "queue", "compute_input", "compute_infer", "compute_output")
LATENCIES = ("request", "queue", "compute_input", "compute_infer", "compute_output")
HISTOGRAM = "nv_inference_first_response_histogram_ms"
BOUNDS = """
model_metrics { metric_control {
    metric_identifier { family: "nv_inference_first_response_histogram_ms" }
    histogram_options { buckets: [ 0.001, 60000.5 ] }
} }
"""
WAITING = """
import os, threading

class TritonPythonModel:
    def initialize(self, args):
        self.place = args["model_repository"]

    def execute(self, requests):
        open(self.place + "/began", "w").close()
        while not os.path.exists(self.place + "/go"):
            threading.Event().wait(0.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
OFF = 'parameters { key: "SANDBOX" value: { string_value: "off" } }'


def body(value=0.0):
    return {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}


@served(
    flags=(
        "--metrics-config=summary_latencies=true",
        "--metrics-config",
        'summary_quantiles="0.5:0.05,0.99:0.001"',
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=counter_latencies=false",
        "--metrics-config=unheard_of=1",
        "--allow-cpu-metrics=false",
        "--metrics-interval-ms=50",
        "--cache-config=local,size=1000000",
        "--model-control-mode=explicit",
        "--load-model=*",
    )
)
def detailed(repository):
    """A server that shows everything but counters of latencies and CPU metrics."""
    batched = identity_config("TYPE_FP32", "[ 1 ]", "max_batch_size: 8")
    write_model(repository, "plain", IDENTITY, batched)
    write_model(repository, "bounded", IDENTITY, batched + BOUNDS)
    write_model(repository, "cached", IDENTITY, batched + "response_cache { enable: true }")
    copy_model(repository, "repeat")


def of(server, family, model, **labels):
    text = ",".join(f'{key}="{value}"' for key, value in sorted({"model": model, "version": "1", **labels}.items()))
    return server.metrics().get(f"{family}{{{text}}}")


@pytest.mark.spec("srv-M05")
def test_summaries(detailed):
    for part in SUMMARIES:
        for quantile in ("0.5", "0.99"):
            assert math.isnan(of(detailed, f"nv_inference_{part}_summary_us", "plain", quantile=quantile))
        assert of(detailed, f"nv_inference_{part}_summary_us_count", "plain") == 0
    for _ in range(5):
        assert detailed.infer("plain", body()).status == 200
    for part in SUMMARIES:
        name = f"nv_inference_{part}_summary_us"
        low, high = (of(detailed, name, "plain", quantile=quantile) for quantile in ("0.5", "0.99"))
        assert 0 <= low <= high
        assert of(detailed, name, "plain", quantile="0.9") is None
        assert of(detailed, name + "_count", "plain") == 5
        assert of(detailed, name + "_sum", "plain") <= 5 * high * 1.1
    assert of(detailed, "nv_inference_request_summary_us", "plain", quantile="0.99") > 0


@pytest.mark.spec("srv-M05")
def test_summaries_of_a_model_with_a_cache(detailed):
    for _ in range(3):
        assert detailed.infer("cached", body(3)).status == 200
    assert of(detailed, "nv_inference_request_summary_us_count", "cached") is None
    assert of(detailed, "nv_inference_compute_infer_summary_us_count", "cached") == 1
    assert of(detailed, "nv_cache_hit_summary_per_model_count", "cached") == 2
    assert of(detailed, "nv_cache_miss_summary_per_model_count", "cached") == 1
    assert of(detailed, "nv_cache_hit_summary_per_model", "cached", quantile="0.5") > 0
    assert of(detailed, "nv_cache_hit_summary_per_model_count", "plain") is None


def test_a_summary_that_no_model_shows_has_no_description(tmp_path):
    """All models have a response cache, whose requests it does not count."""
    write_model(tmp_path, "cached", IDENTITY, identity_config(extra="response_cache { enable: true }"))
    flags = ("--metrics-config=summary_latencies=true", "--cache-config=local,size=1000000")
    with serving(tmp_path, flags=flags) as server:
        page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    described = re.findall(r"(?m)^# TYPE (nv_\w+_summary\w+) summary$", page)
    assert described == [
        *(f"nv_inference_{part}_summary_us" for part in SUMMARIES if part != "request"),
        *(f"nv_cache_{part}_summary_per_model" for part in ("hit", "miss")),
    ]


@pytest.mark.spec("srv-M05")
def test_histograms_of_first_responses(detailed):
    assert detailed.infer("bounded", body()).status == 200
    buckets = {
        bound: of(detailed, HISTOGRAM + "_bucket", "bounded", le=bound) for bound in ("0.001", "60000.5", "+Inf")
    }
    assert buckets == {"0.001": 0, "60000.5": 1, "+Inf": 1}
    assert of(detailed, HISTOGRAM + "_count", "bounded") == 1
    assert 0.001 < of(detailed, HISTOGRAM + "_sum", "bounded") < 60_000
    for bound in ("100", "500", "2000", "5000", "+Inf"):
        assert of(detailed, HISTOGRAM + "_bucket", "repeat", le=bound) == 0
    # A stream counts once; an error does not count.
    for numbers, status in ([3], 200), ([1, 0, 1], 404):
        assert detailed.request("POST", "/v2/models/repeat/generate_stream", {"IN": numbers}).status == status
    assert of(detailed, HISTOGRAM + "_count", "repeat") == 1


@pytest.mark.spec("srv-M05")
def test_counters_of_latencies_can_be_left_out(detailed):
    """The reference then stops counting requests, too; its documentation promises what is tested here."""
    assert detailed.infer("plain", body()).status == 200
    assert of(detailed, "nv_inference_request_success", "plain") > 0
    assert of(detailed, "nv_inference_exec_count", "plain") > 0
    for part in LATENCIES:
        assert of(detailed, f"nv_inference_{part}_duration_us", "plain") is None
    page = detailed.request("GET", "/metrics", port=detailed.metrics_port).body.decode()
    assert "_duration_us" not in page  # not even a description


@pytest.mark.spec("srv-M06", "srv-M10")
def test_cpu_metrics_can_be_left_out(detailed):
    assert not [name for name in detailed.metrics() if name.startswith("nv_cpu")]
    assert detailed.metrics()["nv_pinned_memory_pool_total_bytes"] == 0
    assert "--metrics-config=unheard_of has no effect: the settings are counter_latencies" in detailed.output


@pytest.mark.spec("srv-M07")
@without_gpu
def test_without_a_gpu_there_are_no_gpu_metrics(detailed):
    assert not [name for name in detailed.metrics() if "gpu" in name or "energy" in name]


@pytest.mark.spec("srv-M01")
def test_series_end_with_their_model_and_begin_at_zero(detailed):
    def series():
        return {name: value for name, value in detailed.metrics().items() if 'model="bounded"' in name}

    assert detailed.infer("bounded", body()).status == 200
    assert series()['nv_inference_request_success{model="bounded",version="1"}'] > 0
    assert detailed.request("POST", "/v2/repository/models/bounded/unload").status == 200
    unloaded = {'pybackend_model_ready{model="bounded",state="UNLOADED",version="1"}': 0}
    wait_until(lambda: series() == unloaded, "its series are gone")
    assert detailed.request("POST", "/v2/repository/models/bounded/load").status == 200
    found = series()
    assert found.pop('nv_model_load_duration_secs{model="bounded",version="1"}') > 0
    assert found['nv_inference_request_success{model="bounded",version="1"}'] == 0
    assert not [name for name, value in found.items() if name.startswith("nv_inference") and value > 0]


@pytest.mark.spec("srv-M02", "srv-M03", "srv-M10")
def test_requests_that_wait_and_requests_that_are_refused(tmp_path):
    queue = "dynamic_batching { max_queue_delay_microseconds: 0 default_queue_policy { max_queue_size: 3 } }"
    config = f"{identity_config('TYPE_FP32', '[ 1 ]', 'max_batch_size: 1')} {queue} {OFF}"
    write_model(tmp_path, "waiting", WAITING, config)
    one = tensors(IN=("TYPE_FP32", [1])), tensors(OUT=("TYPE_FP32", [1]))
    write_ensemble(tmp_path, "whole", [step("waiting", {"IN": "IN"}, {"OUT": "OUT"})], *one, "max_batch_size: 1")
    with serving(tmp_path, flags=("--metrics-interval-ms=20",)) as server:
        place = tmp_path / "waiting"
        failures = {
            reason: f'nv_inference_request_failure{{model="waiting",reason="{reason}",version="1"}}'
            for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER")
        }

        def pending():
            return server.metrics()['nv_inference_pending_request_count{model="waiting",version="1"}']

        def of_whole():
            metrics = server.metrics()
            return {reason: metrics[name.replace("waiting", "whole")] for reason, name in failures.items()}

        clients = []

        def send():
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            client.request("POST", "/v2/models/waiting/infer", json.dumps(body()))
            clients.append(client)

        send()
        wait_until((place / "began").exists, "the first request is executed")
        for count in range(1, 4):
            send()
            wait_until(lambda count=count: pending() == count, f"{count} requests wait")
        assert server.infer("waiting", body()).status == 503
        assert server.metrics()[failures["REJECTED"]] == 1
        assert server.infer("whole", body()).status == 503
        assert server.metrics()[failures["REJECTED"]] == 2
        assert of_whole() == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 1}
        clients.pop().close()
        wait_until(lambda: server.metrics()[failures["CANCELED"]] == 1, "the request of a client that left is dropped")
        assert pending() == 2
        used = server.metrics()["nv_cpu_memory_used_bytes"]
        wait_until(lambda: server.metrics()["nv_cpu_memory_used_bytes"] != used, "the next look at the memory")
        (place / "go").touch()
        for client in clients:
            assert client.getresponse().read().startswith(b'{"model_name":"waiting"')
            client.close()
        metrics = server.metrics()
        assert {reason: metrics[name] for reason, name in failures.items()} == {
            "REJECTED": 2,
            "CANCELED": 1,
            "BACKEND": 0,
            "OTHER": 0,
        }
        assert pending() == 0


@pytest.mark.spec("srv-M10")
def test_metrics_can_be_switched_off(tmp_path):
    write_model(tmp_path, "m", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--allow-metrics=false",)) as server:
        assert (
            server.infer("m", {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}]}).status == 200
        )
        assert "Started Metrics Service" not in server.output
        assert server.get("/metrics").status == 404
