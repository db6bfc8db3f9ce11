"""KServe: the command of its runtime for Triton, its probes, and the requests as its Python client writes them."""

import json
import struct

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

FLAGS = ("--allow-grpc=true", "--allow-http=true")
"""Of the runtime, behind the model store and the ports, of which tests take free ones."""

NUMBERS = struct.pack("<3f", 1, 2, 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = tmp_path_factory.mktemp("models")
    write_model(store, "m", IDENTITY, identity_config())
    with serving(flags=(f"--model-store={store}", *FLAGS)) as server:
        yield server


@pytest.mark.spec("srv-P12", "srv-H51")
def test_probes(server):
    """KServe's Python client reads the documents, and its probes the status."""
    for path, document in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/m/versions/1/ready", {"name": "m", "ready": True}),
    ):
        reply = server.get(path)
        assert (reply.status, reply.json) == (200, document)
    assert server.get("/v2/models/nobody/ready").status == 400
    metrics = server.request("GET", "/metrics", port=server.metrics_port)
    assert (metrics.status, metrics.headers["content-type"].partition(";")[0]) == (200, "text/plain")


@pytest.mark.spec("srv-P12")
def test_probes_of_a_model_that_does_not_load(tmp_path):
    write_model(tmp_path, "m", IDENTITY, identity_config())
    write_model(tmp_path, "broken", "raise ImportError('on purpose')")
    with serving(flags=(f"--model-store={tmp_path}", *FLAGS, "--exit-on-error=false"), ready=False) as server:
        server.wait_until("/v2/models/m/ready", 200)
        server.wait_for("broken.*UNAVAILABLE")
        assert [
            server.get(f"/v2/{path}").status for path in ("health/live", "health/ready", "models/broken/ready")
        ] == [
            200,
            400,
            400,
        ]


@pytest.mark.spec("srv-P12")
@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("outputs", [None, [{"name": "OUT"}], [{"name": "OUT", "parameters": {"binary_data": True}}]])
def test_requests_of_the_rest_client(server, binary_in, outputs):
    tensor = {"name": "IN", "shape": [3], "datatype": "FP32"}
    tensor |= {"parameters": {"binary_data_size": 12}} if binary_in else {"data": [1.0, 2.0, 3.0]}
    document = {"id": "7", "model_name": "m", "inputs": [tensor], "parameters": {"factor": 3}}
    if outputs:
        document["outputs"] = outputs
    text = json.dumps(document, separators=(",", ":")).encode()
    headers = {"content-type": "application/json"}
    if binary_in:
        headers |= {"content-type": "application/octet-stream", "inference-header-content-length": str(len(text))}
    reply = server.infer("m", text + NUMBERS if binary_in else text, headers)
    assert reply.status == 200
    if outputs == [{"name": "OUT", "parameters": {"binary_data": True}}]:
        length = int(reply.headers["inference-header-content-length"])
        assert reply.body[length:] == NUMBERS
    else:
        (output,) = reply.json["outputs"]
        assert (reply.json["id"], output["data"]) == ("7", [1, 2, 3])


@pytest.mark.spec("srv-P12")
@pytest.mark.parametrize("raw", [False, True])
def test_requests_of_the_grpc_client(server, raw):
    request = service_pb2.ModelInferRequest(model_name="m", id="7")
    tensor = request.inputs.add(name="IN", datatype="FP32", shape=[3])
    if raw:
        request.raw_input_contents.append(NUMBERS)
    else:
        tensor.contents.fp32_contents.extend([1, 2, 3])
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        response = call(request, timeout=60)
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [1, 2, 3]
