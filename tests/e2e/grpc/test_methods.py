"""The other methods: health, metadata, configuration, reflection."""

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.utils import InferenceServerException

from tests.support.server import serving


@pytest.mark.spec("srv-G01")
def test_health_metadata_and_configuration(server, grpc_client):
    assert grpc_client.is_server_live()
    assert grpc_client.is_server_ready()
    assert grpc_client.is_model_ready("batched")
    assert grpc_client.is_model_ready("batched", "1")
    assert not grpc_client.is_model_ready("nobody")
    described = grpc_client.get_server_metadata(as_json=True)
    assert described["name"] == "triton"
    assert "binary_tensor_data" in described["extensions"]
    metadata = grpc_client.get_model_metadata("batched", as_json=True)
    assert metadata == {
        "name": "batched",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": ["-1", "2"]}],
        "outputs": [{"name": "OUT", "datatype": "INT32", "shape": ["-1", "2"]}],
    }
    config = grpc_client.get_model_config("batched").config
    assert (config.name, config.backend, config.max_batch_size) == ("batched", "python", 8)
    assert [(each.name, list(each.dims)) for each in config.input] == [("IN", [2])]
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody' is not found"):
        grpc_client.get_model_metadata("nobody")


@pytest.mark.spec("srv-G01")
def test_methods_that_are_not_there_are_refused_by_name(server):
    path = "/inference.GRPCInferenceService/ModelTraining"
    with grpc.insecure_channel(server.grpc_url) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details().startswith(f"this server has no method {path}")


@pytest.mark.spec("srv-G10")
def test_the_health_service(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "whatever"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=60))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.spec("srv-G10")
def test_a_server_without_its_models_is_not_serving(tmp_path):
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.py").write_text("raise ImportError('on purpose')")
    with serving(tmp_path, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("broken.*UNAVAILABLE")
        with grpc.insecure_channel(server.grpc_url) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.spec("srv-G11")
def test_reflection(server):
    """A client that knows nothing finds services, messages and fields, as grpcurl does."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(database.get_services())
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        request = service.FindMethodByName("ModelInfer").input_type
        assert request.fields_by_name["raw_input_contents"].number == 7
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName("inference.Nothing")


def test_a_port_in_use(server, tmp_path):
    port = server.grpc_url.rpartition(":")[2]
    with serving(tmp_path, flags=(f"--grpc-port={port}",), ready=False) as second:
        assert second.wait() == 1
        assert f"failed to start GRPC service: Socket '127.0.0.1:{port}' already in use" in second.output
        assert "--grpc-port" in second.output


def test_switched_off(tmp_path):
    with serving(tmp_path, flags=("--allow-grpc=false",)) as server:
        assert "Started GRPCInferenceService" not in server.output
