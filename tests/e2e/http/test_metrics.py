"""The metrics page: each family's name, type, help and labels, what it starts with, and what requests add to it."""

import json
import re

import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.http.models import ADD_SUB, PROBE
from tests.support.connection import connected, post
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import serving

PER_MODEL = {
    "nv_inference_request_success": ("counter", "Number of successful inference requests, all batch sizes"),
    "nv_inference_count": ("counter", "Number of inferences performed (does not include cached requests)"),
    "nv_inference_exec_count": ("counter", "Number of model executions performed (does not include cached requests)"),
    "nv_inference_request_duration_us": (
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    "nv_inference_queue_duration_us": (
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    "nv_inference_compute_input_duration_us": (
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_infer_duration_us": (
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_compute_output_duration_us": (
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    "nv_inference_pending_request_count": (
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
    ),
    "nv_model_load_duration_secs": ("gauge", "Model load time in seconds"),
    "pybackend_model_output_dropped_lines_total": (
        "counter",
        "Number of lines that models printed or logged and that the server's log did not take",
    ),
    "pybackend_stub_restarts_total": (
        "counter",
        "Number of processes of the model that were replaced after they had died",
    ),
    "pybackend_stub_renewals_total": (
        "counter",
        "Number of processes of the model that have made place for a new one, for their requests or their size",
    ),
    "pybackend_copied_bytes_total": (
        "counter",
        "Size of all tensors that were copied into the model's input memory, in bytes",
    ),
    "pybackend_input_memory_bytes": (
        "gauge",
        "Shared memory that the model's inputs use or keep warm, in bytes",
    ),
}
MEMORY = {
    "pybackend_output_memory_bytes": (
        "gauge",
        "Shared memory that the model's processes have for outputs, in bytes",
    ),
}
READY = {
    "pybackend_model_change_failed": (
        "gauge",
        "1 if the model as it is in the repository failed to load, and an earlier state of it serves",
    ),
    "pybackend_model_ready": (
        "gauge",
        "1 if the version is ready, 0 if it is not; models without a version have an empty one",
    ),
}
INSTANCES = {
    "pybackend_executions_running": ("gauge", "Number of calls of execute that run now"),
    "pybackend_oldest_execution_seconds": ("gauge", "How long the oldest of these calls has run, in seconds, or 0"),
    "pybackend_instances": ("gauge", "Number of instances of the model"),
    "pybackend_instances_ready": ("gauge", "Number of instances of the model whose processes serve"),
}
FAILURES = {"nv_inference_request_failure": ("counter", "Number of failed inference requests, all batch sizes")}
REFUSED = {
    "pybackend_refused_requests_total": ("counter", "Number of requests that were refused before a model accepted them")
}
ANSWERS = {
    "pybackend_answers_total": (
        "counter",
        "Number of answers by the protocol of the sender and the code of the answer",
    )
}
LAG = {
    "pybackend_event_loop_lag_seconds": (
        "histogram",
        "How late the server's event loop called a timer, measured four times a second, in seconds",
    )
}
SANDBOX = {
    "pybackend_sandbox_missing_layers": ("gauge", "Number of layers of the model's sandbox that are not in force")
}
PROCESSES = {
    "pybackend_process_resident_bytes": (
        "gauge",
        "Memory of the instance's process and of those that it started (Rss: shared pages count for each), in bytes",
    ),
    "pybackend_process_cpu_seconds_total": (
        "counter",
        "Processor time of the instance's process and of those that it started, in seconds",
    ),
}
STORAGE = {
    "pybackend_repository_answers": (
        "gauge",
        "1 if the repository in cloud storage answered when it was last asked, 0 if its last listing is in use",
    ),
    "pybackend_repository_listed_timestamp_seconds": (
        "gauge",
        "When the repository in cloud storage was last listed, in seconds since 1970",
    ),
}
MACHINE = {
    "nv_pinned_memory_pool_total_bytes": ("gauge", "Pinned memory pool total memory size, in bytes"),
    "nv_pinned_memory_pool_used_bytes": ("gauge", "Pinned memory pool used memory size, in bytes"),
    "nv_cpu_utilization": ("gauge", "CPU utilization rate [0.0 - 1.0]"),
    "nv_cpu_memory_total_bytes": ("gauge", "CPU total memory (RAM), in bytes"),
    "nv_cpu_memory_used_bytes": ("gauge", "CPU used memory (RAM), in bytes"),
}
CHILD_BYTES, CHILD_CPU_S = 96_000_000, 0.2
PARENT = f"""
import subprocess, sys, time
CHILD = '''
import sys, time
kept = b"x" * {CHILD_BYTES}
while time.process_time() < {CHILD_CPU_S}:
    pass
print("done", flush=True)
sys.stdin.read()
'''

class TritonPythonModel:
    def initialize(self, args):
        self.child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.child.stdout.readline()
    def execute(self, requests):
        end = time.process_time() + {CHILD_CPU_S}
        while time.process_time() < end:
            pass
        return [pb_utils.InferenceResponse([]) for _ in requests]
    def finalize(self):
        self.child.communicate()
"""
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
ASKING = """
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(requests[0], "IN")]
        call = pb_utils.InferenceRequest(model_name="absent", requested_output_names=["OUT"], inputs=inputs)
        answer = call.exec()
        raise pb_utils.TritonModelException(answer.error().message())
"""
ASKING_CONFIG = identity_config("TYPE_FP32")
PAIR = {
    "inputs": [{"name": name, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for name in ("INPUT0", "INPUT1")]
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A server of its own, whose counters nobody else moves; each test has a model for itself."""
    repository = tmp_path_factory.mktemp("metrics")
    pair = f"""
        backend: "python" metric_tags {{ key: "team" value: "a \\"quoted\\" b" }}
        input [ {tensors(INPUT0=("TYPE_FP32", [4]), INPUT1=("TYPE_FP32", [4]))} ]
        output [ {tensors(OUTPUT0=("TYPE_FP32", [4]), OUTPUT1=("TYPE_FP32", [4]))} ]
    """
    write_model(repository, "untouched", IDENTITY, identity_config(extra="version_policy { all {} }"), version=1)
    write_model(repository, "untouched", IDENTITY, identity_config(extra="version_policy { all {} }"), version=2)
    write_model(repository, "tagged", ADD_SUB, pair)
    write_model(repository, "large", IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    for name in ("batched", "followed"):
        write_model(repository, name, IDENTITY, identity_config("TYPE_FP32", "[ 1 ]", "max_batch_size: 8"))
    probe = f"""
        backend: "python"
        input [ {tensors(COMMAND=("TYPE_STRING", [1]))} ]
        output [ {tensors(SEEN=("TYPE_STRING", [1]), BLOB=("TYPE_STRING", [1]))} ]
    """
    write_model(repository, "failing", PROBE, probe)
    write_model(repository, "parent", PARENT, identity_config("TYPE_FP32", "[ 1 ]"))
    write_model(repository, "broken", "raise ImportError('on purpose')", identity_config())
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"untouched +\| 2 ")
        yield server


def page(server):
    reply = server.request("GET", "/metrics", port=server.metrics_port)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    return reply.body.decode()


def command(server, **members):
    tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [json.dumps(members)]}
    return server.infer("failing", {"inputs": [tensor]})


@pytest.mark.spec("srv-M01")
@pytest.mark.one_process  # front ends have families of metrics, see test_front_ends.py
def test_families(fresh):
    text = page(fresh)
    families = {
        **PER_MODEL,
        **MEMORY,
        **READY,
        **INSTANCES,
        **FAILURES,
        **ANSWERS,
        **REFUSED,
        **LAG,
        **SANDBOX,
        **PROCESSES,
        **STORAGE,
        **MACHINE,
    }
    for name, (kind, description) in families.items():
        assert text.count(f"# HELP {name} {description}\n# TYPE {name} {kind}\n") == 1, name
    assert len(re.findall("^# TYPE ", text, re.MULTILINE)) == len(families)
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .*|[a-z_]+(\{([a-z_]+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+', line), line
    parsed = list(text_string_to_metric_families(text))
    assert len(parsed) >= len(families)


@pytest.mark.spec("srv-M01")
def test_samples_of_a_model_at_load(fresh):
    """Every family is there from the start, at zero, once per version."""
    metrics = fresh.metrics()
    for version in ("1", "2"):
        labels = f'model="untouched",version="{version}"'
        for name in PER_MODEL.keys() - {"nv_model_load_duration_secs"}:
            assert metrics[f"{name}{{{labels}}}"] == 0, name
        assert 0 < metrics[f"nv_model_load_duration_secs{{{labels}}}"] < 60
        assert metrics[f'pybackend_model_ready{{model="untouched",state="READY",version="{version}"}}'] == 1
        assert metrics[f"pybackend_instances{{{labels}}}"] == 1
        assert metrics[f"pybackend_instances_ready{{{labels}}}"] == 1
        for reason in REASONS:
            assert (
                metrics[f'nv_inference_request_failure{{model="untouched",reason="{reason}",version="{version}"}}'] == 0
            )
    down = 'pybackend_model_ready{model="broken",state="UNAVAILABLE",version="1"}'
    assert {sample: value for sample, value in metrics.items() if 'model="broken"' in sample} == {down: 0}


def test_a_parser_finds_every_line(fresh):
    """Names, labels and values as prometheus-client reads them are those of the lines."""
    text = page(fresh)
    found = [
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    lines = {line for line in text.splitlines() if not line.startswith("#")}
    assert len(found) == len(lines)
    for name, labels, value in found:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels))
        rest = f"{{{inner}}} {value}".removeprefix("{}")
        assert {name + rest, name.removesuffix("_total") + rest} & lines  # the parser appends it to names of counters


def _escaped(text):
    return text.replace("\\", r"\\").replace('"', r"\"")


def test_a_page_is_never_older_than_the_statistics(fresh):
    """Lines are kept from page to page: those of a model that answered are new, all others the same."""
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
    kept = _of_models(fresh)
    for _ in range(3):
        assert fresh.infer("followed", body).status == 200
        lines = _of_models(fresh)
        changed = lines - kept
        assert {line.partition("{")[0] for line in changed} >= {"nv_inference_count", "nv_inference_exec_count"}
        assert all('model="followed"' in line for line in changed)
        kept = lines
        statistics = fresh.get("/v2/models/followed/stats").json["model_stats"][0]
        success = statistics["inference_stats"]["success"]
        for name, value in {
            "nv_inference_request_success": success["count"],
            "nv_inference_request_duration_us": success["ns"] // 1000,
            "nv_inference_count": statistics["inference_count"],
            "nv_inference_exec_count": statistics["execution_count"],
        }.items():
            assert f'{name}{{model="followed",version="1"}} {float(value)}' in lines
    assert _of_models(fresh) == kept


def _of_models(server):
    """The lines of models, without what changes by itself: memory that is given back, and other tests' refusals."""
    return {
        line
        for line in page(server).splitlines()
        if 'model="' in line and not re.match("[a-z_]+memory_bytes|pybackend_refused|pybackend_process", line)
    }


def test_processes_count_with_their_children(fresh):
    labels = '{instance_name="parent_0",model="parent",version="1"}'
    before = fresh.metrics()
    assert before["pybackend_process_resident_bytes" + labels] > CHILD_BYTES
    assert before["pybackend_process_cpu_seconds_total" + labels] >= 0.9 * CHILD_CPU_S
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}
    assert fresh.infer("parent", {"inputs": [tensor]}).status == 200
    name = "pybackend_process_cpu_seconds_total" + labels
    assert fresh.metrics()[name] - before[name] >= 0.9 * CHILD_CPU_S


@pytest.mark.spec("srv-M06")
def test_machine(fresh):
    metrics = fresh.metrics()
    assert 0 <= metrics["nv_cpu_utilization"] <= 1
    assert 0 < metrics["nv_cpu_memory_used_bytes"] < metrics["nv_cpu_memory_total_bytes"]
    assert metrics["nv_pinned_memory_pool_used_bytes"] <= metrics["nv_pinned_memory_pool_total_bytes"]


def test_requests_inferences_executions(fresh):
    """Three requests, one of them with a batch of four."""
    for batch in (1, 4, 1):
        tensor = {"name": "IN", "datatype": "FP32", "shape": [batch, 1], "data": [0] * batch}
        assert fresh.infer("batched", {"inputs": [tensor]}).status == 200
    metrics = fresh.metrics()
    labels = '{model="batched",version="1"}'
    found = {name: metrics[name + labels] for name in PER_MODEL}
    assert found["nv_inference_request_success"] == 3
    assert found["nv_inference_count"] == 6
    assert found["nv_inference_exec_count"] == 3
    assert found["nv_inference_pending_request_count"] == 0
    steps = ("queue", "compute_input", "compute_infer", "compute_output")
    total_us = found["nv_inference_request_duration_us"]
    assert 0 < sum(found[f"nv_inference_{step}_duration_us"] for step in steps) <= total_us
    assert found["nv_inference_compute_infer_duration_us"] > 0


def test_large_tensors_are_copied_once(fresh):
    """They lie in shared memory; small ones travel within messages."""
    name = 'pybackend_copied_bytes_total{model="large",version="1"}'
    assert fresh.metrics()[name] == 0
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [25_000], "data": [1.5] * 25_000}]}
    for count in (1, 2):
        assert fresh.infer("large", body).status == 200
        assert fresh.metrics()[name] == count * 100_000
    metrics = fresh.metrics()
    for memory in ("input", "output"):
        assert metrics[f'pybackend_{memory}_memory_bytes{{model="large",version="1"}}'] >= 100_000


def test_answers_by_protocol_and_code(fresh):
    def answers(protocol, code):
        return fresh.metrics().get(f'pybackend_answers_total{{code="{code}",protocol="{protocol}"}}', 0)

    kinds = [("http", "200"), ("http", "400"), ("http", "404"), ("grpc", "OK"), ("grpc", "NOT_FOUND")]
    before = {kind: answers(*kind) for kind in kinds}
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert fresh.infer("large", body).status == 200
    assert fresh.get("/v2").status == 200
    assert fresh.infer("large", PAIR).status == 400
    assert fresh.get("/v2/models/large/versions/7").status == 404
    with tritonclient.grpc.InferenceServerClient(fresh.grpc_url) as client:
        assert client.is_server_live()
        with pytest.raises(tritonclient.utils.InferenceServerException):
            client.get_model_metadata("nobody")
    added = {kind: answers(*kind) - count for kind, count in before.items()}
    assert added == dict(zip(kinds, (2, 1, 1, 1, 1), strict=True))


def test_lag_of_the_event_loop(fresh):
    def count():
        return fresh.metrics()["pybackend_event_loop_lag_seconds_count"]

    before = count()
    wait_until(lambda: count() > before, "the next measurement")
    metrics = fresh.metrics()
    assert (
        metrics['pybackend_event_loop_lag_seconds_bucket{le="+Inf"}']
        == metrics["pybackend_event_loop_lag_seconds_count"]
    )


def test_metric_tags_are_labels(fresh):
    assert fresh.infer("tagged", PAIR).status == 200
    assert r'nv_inference_count{_team="a \"quoted\" b",model="tagged",version="1"} 1.0' in page(fresh)


@pytest.mark.spec("srv-M02")
def test_failures_of_the_model(fresh):
    assert command(fresh, **{"raise": "oh"}).status == 500
    assert command(fresh, error="no", code="NOT_FOUND").status == 404
    assert command(fresh).status == 200
    metrics = fresh.metrics()
    failures = {
        reason: metrics[f'nv_inference_request_failure{{model="failing",reason="{reason}",version="1"}}']
        for reason in REASONS
    }
    assert failures == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 2, "OTHER": 0}
    assert metrics['nv_inference_request_success{model="failing",version="1"}'] == 1


def _of_the_reference(server, model):
    return [line for line in page(server).splitlines() if line.startswith("nv_") and f'model="{model}"' in line]


def _refused(server, model, reason, protocol="http"):
    sample = f'pybackend_refused_requests_total{{model="{model}",protocol="{protocol}",reason="{reason}"}}'
    return server.metrics().get(sample, 0)


def test_requests_that_never_reach_the_model_are_counted_apart(fresh):
    """The reference counts them nowhere, so its families stay as they are; a family of ours counts them."""
    before = _of_the_reference(fresh, "tagged")
    wrong = {"inputs": [{**each, "shape": [3]} for each in PAIR["inputs"]]}
    bodies = (b"{", b"{}", b'{"inputs":[]}', json.dumps({"inputs": PAIR["inputs"][:1]}).encode(), json.dumps(wrong))
    for count, body in enumerate(bodies, 1):
        assert fresh.infer("tagged", body).status in {400, 500}
        assert _refused(fresh, "tagged", "invalid") == count
    assert _of_the_reference(fresh, "tagged") == before


def test_requests_without_a_model_are_counted_without_its_name(fresh):
    """Otherwise a client could make any number of series."""
    for number in range(3):
        assert fresh.infer(f"unknown{number}", b"{}").status == 404
    assert _refused(fresh, "", "unknown_model") == 3
    assert fresh.infer("broken", b"{}").status in {400, 404, 503}
    assert _refused(fresh, "broken", "not_serving") == 1
    assert fresh.request("POST", "/v2/models/tagged/inferr", b"{}").status == 404
    assert _refused(fresh, "", "unknown_route") == 1
    with connected(fresh.port) as connection:
        connection.send(b"nonsense\r\n\r\n")
        assert connection.reply().status == 400
    assert _refused(fresh, "", "malformed") == 1
    assert "unknown0" not in page(fresh)


def test_compressed_and_streamed_requests_that_are_refused_count_as_well(fresh):
    before = _refused(fresh, "batched", "unsupported"), _refused(fresh, "batched", "invalid")
    head = b"POST /v2/models/batched/infer HTTP/1.1\r\nHost: x\r\n"
    with connected(fresh.port) as connection:
        connection.send(head + b"content-encoding: br\r\ncontent-length: 2\r\n\r\n{}")
        assert connection.reply().status == 501
        connection.send(head + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        assert connection.reply().status == 500
    assert (_refused(fresh, "batched", "unsupported"), _refused(fresh, "batched", "invalid")) == (
        before[0] + 1,
        before[1] + 1,
    )


def test_a_client_that_leaves_in_the_middle_was_not_refused(fresh):
    before = [line for line in page(fresh).splitlines() if line.startswith("pybackend_refused")]
    with connected(fresh.port) as connection:
        connection.send(b"POST /v2/models/batched/infer HTTP/1.1\r\nHost: x\r\ncontent-length: 90000\r\n\r\n{")
    assert fresh.infer("tagged", PAIR).status == 200
    assert [line for line in page(fresh).splitlines() if line.startswith("pybackend_refused")] == before


def test_a_verbose_line_names_sender_model_and_mistake(tmp_path):
    write_model(tmp_path, "tagged", IDENTITY, identity_config())
    write_model(tmp_path, "asking", ASKING, ASKING_CONFIG)
    with serving(tmp_path, flags=("--log-verbose=1",)) as server:
        assert server.infer("tagged", b"{").status == 500
        server.wait_for(
            r"Refused a request for model 'tagged' over http from 127\.0\.0\.1:\d+ \(invalid\): failed to parse"
        )
        assert server.infer("nobody", b"{}").status == 404
        server.wait_for(
            r"Refused a request for model 'nobody' .*\(unknown_model\): Request for unknown model: 'nobody'"
        )
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}
        assert server.infer("asking", {"inputs": [tensor]}).status == 500
        server.wait_for(r"Refused a request for model 'absent' over model from asking_0 \(unknown_model\)")
        assert _refused(server, "", "unknown_model", "model") == 1


@pytest.mark.spec("srv-H44")
def test_other_requests_on_the_metrics_port(fresh):
    port = fresh.metrics_port
    assert fresh.request("GET", "/metrics/", port=port).status == 200
    assert fresh.request("GET", "/v2/health/live", port=port).status == 404
    assert fresh.request("POST", "/metrics", b"", port=port).status == 405
    with connected(port) as connection:
        connection.send(post("/metrics", bytes(1_000_000)))
        assert connection.reply().status == 405
        connection.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert [reply.status for reply in connection.replies(3)] == [200, 200, 200]
