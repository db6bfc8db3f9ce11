"""Spans of OpenTelemetry: what a collector gets, and how a trace goes on from the client through models."""

import json

import numpy as np
import pytest

pytest.importorskip("opentelemetry.proto")

import grpc
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2

from tests.e2e.observability.collector import collecting
from tests.e2e.observability.conftest import REQUEST
from tests.support.connection import connected
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.server import serving

BODY = json.dumps(REQUEST).encode()
CONTEXT = """
class TritonPythonModel:
    def execute(self, requests):
        contexts = [str(request.trace().get_context()) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([each], object))]) for each in contexts]
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="chain", requested_output_names=["OUT"], inputs=request.inputs(), trace=request.trace()
            )
            answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return answers
"""
ENSEMBLE = """
platform: "ensemble"
input [ {inputs} ] output [ {outputs} ]
ensemble_scheduling {{ step [
  {{ model_name: "identity" model_version: -1
     input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }}
] }}
"""
PARTS = ["queue", "compute input", "compute", "compute output"]
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("spans")
    floats = identity_config("TYPE_FP32", "[ -1 ]")
    write_model(repository, "identity", IDENTITY, floats)
    write_model(repository, "caller", CALLER, floats)
    both = f"input [ {tensors(IN=('TYPE_FP32', [-1]))} ] output [ {tensors(OUT=('TYPE_STRING', [1]))} ]"
    write_model(repository, "context", CONTEXT, f'backend: "python" {both}')
    (repository / "chain" / "1").mkdir(parents=True)
    text = ENSEMBLE.format(inputs=tensors(IN=("TYPE_FP32", [-1])), outputs=tensors(OUT=("TYPE_FP32", [-1])))
    (repository / "chain" / "config.pbtxt").write_text(text)
    return repository


@pytest.fixture(scope="module")
def collector():
    with collecting() as made:
        yield made


def flags(url, *more):
    return (
        "--trace-config=mode=opentelemetry",
        "--trace-config=level=TIMESTAMPS",
        f"--trace-config=opentelemetry,url={url}",
        "--trace-config=opentelemetry,bsp_schedule_delay=20",
        *more,
    )


@pytest.fixture(scope="module")
def server(repository, collector):
    more = ("--trace-config=rate=0", "--trace-config=opentelemetry,resource=service.name=mine")
    more = (*more, "--grpc-infer-response-compression-level=low")
    with serving(repository, flags=flags(collector.url, *more)) as process:
        yield process


def traceparent(number, *, sampled="01"):
    """A context of its own for each test."""
    return f"00-{TRACE_ID[:-2]}{number:02x}-{SPAN_ID}-{sampled}", f"{TRACE_ID[:-2]}{number:02x}"


def parents(spans):
    """The name of each span's parent, by its own name; other services' spans by their id."""
    names = {span.span_id.hex(): span.name for span in spans}
    found = [(span.name, names.get(span.parent_span_id.hex(), span.parent_span_id.hex())) for span in spans]
    return sorted(found)


def attributes(span):
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


@pytest.mark.spec("srv-M14")
def test_a_context_goes_through_the_server(server, collector):
    sent, trace_id = traceparent(1)
    for _ in range(3):  # the third head is known
        reply = server.infer("identity", {**REQUEST, "id": "mine"}, {"traceparent": sent, "tracestate": "a=b"})
    assert server.infer("identity", REQUEST).status == 200  # has no context, and the rate is 0
    spans = collector.wait_for(18, trace_id)
    assert parents(spans[:6]) == sorted(
        [("InferRequest", SPAN_ID), ("identity", "InferRequest"), *((part, "identity") for part in PARTS)]
    )
    roots = {span.span_id.hex(): span for span in spans if span.name == "InferRequest"}
    version, replied_trace, replied_span, sampled = reply.headers["traceparent"].split("-")
    assert (version, replied_trace, sampled) == ("00", trace_id, "01")
    assert replied_span in roots
    root, model = roots[replied_span], next(span for span in spans if span.name == "identity")
    assert [event.name for event in root.events] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    assert root.trace_state == model.trace_state == "a=b"
    assert {"QUEUE_START", "COMPUTE_START", "REQUEST_END"} <= {event.name for event in model.events}
    found = attributes(model)
    number = found.pop("triton.trace_id")
    assert number > 0
    assert found == {
        "triton.model_name": "identity",
        "triton.model_version": 1,
        "triton.trace_parent_id": 0,
        "triton.request_id": "mine",
    }
    assert collector.resource["service.name"] == "mine"
    for span in spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano
        assert root.start_time_unix_nano - 30e9 < span.start_time_unix_nano <= root.end_time_unix_nano


@pytest.mark.spec("srv-M14", "pb-B15")
def test_calls_and_steps_are_children(server, collector):
    sent, trace_id = traceparent(2)
    assert server.infer("caller", REQUEST, {"traceparent": sent}).status == 200
    spans = collector.wait_for(12, trace_id)
    by_name = dict(parents([span for span in spans if span.name not in PARTS]))
    assert by_name["caller"] == "InferRequest"
    assert by_name["identity"] == "chain"
    called = next(span for span in spans if span.name == "chain")
    calling = next(span for span in spans if span.span_id == called.parent_span_id)
    caller = next(span for span in spans if span.name == "caller")
    assert (calling.name, calling.parent_span_id) == ("compute", caller.span_id)


def test_a_compressed_answer_has_the_context(server):
    sent, trace_id = traceparent(7)
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="IN", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    with grpc.insecure_channel(server.grpc_url) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        _, call = infer.with_call(request.SerializeToString(), metadata=[("traceparent", sent)], timeout=60)
        head = dict(call.initial_metadata())
    assert head["traceparent"].split("-")[1] == trace_id
    assert call.code() is grpc.StatusCode.OK


@pytest.mark.spec("srv-M14")
def test_a_model_continues_the_context_over_both_ports(server, collector):
    sent, trace_id = traceparent(3)
    reply = server.infer("context", REQUEST, {"traceparent": sent, "tracestate": "a=b"})
    (text,) = reply.json["outputs"][0]["data"]
    tensor = grpc_client.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        result = client.infer("context", [tensor], headers={"traceparent": sent})
        other = result.as_numpy("OUT")[0].decode()
        plain = client.infer("context", [tensor]).as_numpy("OUT")[0]
    spans = {span.span_id.hex(): span for span in collector.wait_for(12, trace_id)}
    assert json.loads(text)["tracestate"] == "a=b"
    for context in (text, other):
        version, context_trace, span_id, sampled = json.loads(context)["traceparent"].split("-")
        assert (version, context_trace, sampled) == ("00", trace_id, "01")
        assert spans[span_id].name == "compute"
    assert plain == b"None"
    doors = {event.name for span in spans.values() if span.name == "InferRequest" for event in span.events}
    assert {"GRPC_WAITREAD_START", "GRPC_SEND_END"} < doors


@pytest.mark.spec("srv-M14")
@pytest.mark.parametrize(
    "wrong",
    [
        traceparent(4, sampled="00")[0],
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        "x",
    ],
)
def test_contexts_that_start_no_trace(server, wrong):
    reply = server.infer("context", REQUEST, {"traceparent": wrong})
    assert reply.json["outputs"][0]["data"] == ["None"]
    assert "traceparent" not in reply.headers


@pytest.mark.spec("srv-M14")
def test_a_repeated_context_counts_as_none(server, collector):
    """A mesh that doubles the field must fail no request; nobody knows which one is right, so a new trace begins."""
    twice = traceparent(5)[0], traceparent(6)[0]
    fields = f"Content-Length: {len(BODY)}\r\ntraceparent: {twice[0]}\r\ntraceparent: {twice[1]}"

    def contexts():
        with connected(server.port) as connection:
            for _ in range(3):  # the third head is known
                connection.send(
                    f"POST /v2/models/context/infer HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode() + BODY
                )
                yield connection.reply().json["outputs"][0]["data"][0]

    assert set(contexts()) == {"None"}  # the rate is 0
    assert server.request("POST", "/v2/trace/setting", {"trace_rate": "1"}).status == 200
    try:
        found = [json.loads(context)["traceparent"].split("-")[1] for context in contexts()]
    finally:
        server.request("POST", "/v2/trace/setting", {"trace_rate": "0"})
    assert len(set(found)) == 3
    assert not set(found) & {traceparent(5)[1], traceparent(6)[1]}


@pytest.mark.spec("srv-M14")
def test_sampled_requests_begin_traces(server, collector):
    assert server.request("POST", "/v2/models/identity/trace/setting", {"trace_rate": "1"}).status == 200
    try:
        reply = server.infer("identity", REQUEST)
        failed = server.infer("identity", {"inputs": [{**REQUEST["inputs"][0], "datatype": "INT32"}]})
    finally:
        server.request("POST", "/v2/models/identity/trace/setting", {"trace_rate": None})
    assert failed.status == 400
    trace_id = reply.headers["traceparent"].split("-")[1]
    (root,) = [span for span in collector.wait_for(6, trace_id) if span.name == "InferRequest"]
    assert root.parent_span_id == b""


@pytest.mark.spec("srv-H31")
def test_the_settings_of_this_mode(server, collector):
    assert server.get("/v2/trace/setting").json == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "0",
        "trace_count": "-1",
        "url": collector.url,
        "resource": "service.name=mine",
        "bsp_max_queue_size": "2048",
        "bsp_schedule_delay": "20",
        "bsp_max_export_batch_size": "512",
        "trace_mode": "opentelemetry",
    }


@pytest.mark.spec("srv-M14")
def test_a_collector_that_is_away_delays_nothing(models):
    with collecting() as collector:
        collector.accepts = False
        more = ("--trace-config=rate=1", "--trace-config=opentelemetry,bsp_max_queue_size=10")
        with serving(models, flags=flags(collector.url, *more)) as server:
            for _ in range(20):
                assert server.infer("identity", REQUEST).status == 200
            server.wait_for('W.*"traces are lost: ')
            collector.accepts = True
            while not collector.spans():
                assert server.infer("identity", REQUEST).status == 200
            server.wait_for(r'W.*"traces are recorded again; lost \d+ of them"')
            assert server.stop() == 0
            assert server.output.count("traces are lost") == server.output.count("traces are recorded again")
    with serving(models, flags=flags(collector.url, *more)) as server:  # nobody listens there any more
        for _ in range(20):
            assert server.infer("identity", REQUEST).status == 200
        assert server.stop() == 0
