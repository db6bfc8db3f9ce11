"""ModelInfer through Triton's own client: tensors there and back, errors with their status, cancellation, deadlines."""

import asyncio

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.grpc import aio, service_pb2
from tritonclient.utils import InferenceServerException

from tests.e2e.grpc.conftest import floats, given
from tests.support.gates import wait_until

STATUSES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARGUMENT",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def refusal(call, *arguments, **options):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value


def raw_call(server, request, method=METHOD, metadata=None, timeout=60):
    """A call of generated stubs, without Triton's client."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(
            method,
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        return call(request, metadata=metadata, timeout=timeout)


@pytest.mark.spec("srv-G03")
@pytest.mark.parametrize("count", [0, 1, 7, 16_384, 300_000])
def test_tensors_there_and_back(grpc_client, count):
    """Below and above the sizes from which tensors lie in shared memory and messages are sent as views."""
    array = np.arange(count, dtype=np.float32)
    for _ in range(3):
        result = grpc_client.infer("identity", given(array), request_id="a-17")
        np.testing.assert_array_equal(result.as_numpy("OUT"), array)
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("a-17", "identity", "1")
        assert len(response.raw_output_contents) == 1
        assert not response.outputs[0].HasField("contents")


@pytest.mark.spec("srv-G13")
def test_messages_of_100_megabytes(server):
    array = np.arange(25_000_000, dtype=np.float32)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with client.InferenceServerClient(server.grpc_url, channel_args=options) as large:
        np.testing.assert_array_equal(large.infer("identity", given(array)).as_numpy("OUT"), array)


def test_texts(grpc_client):
    words = np.array(["", "héllo", "a" * 100_000], object)
    found = grpc_client.infer("texts", given(words, datatype="BYTES")).as_numpy("OUT")
    assert [each.decode() for each in found] == list(words)


@pytest.mark.spec("srv-G02", "srv-G03")
def test_typed_contents(server):
    request = service_pb2.ModelInferRequest(model_name="identity")
    tensor = request.inputs.add(name="IN", datatype="FP32", shape=[2])
    tensor.contents.fp32_contents.extend([1.5, 2.5])
    answer = raw_call(server, request)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [1.5, 2.5]
    for change, text in (
        (lambda: request.raw_input_contents.append(b"12345678"), "contents field must not be specified when using"),
        (tensor.ClearField, None),
    ):
        change("contents") if text is None else change()
        if text is not None:
            with pytest.raises(grpc.RpcError) as caught:
                raw_call(server, request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details().startswith(text)
    request.ClearField("raw_input_contents")
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, request)
    assert caught.value.details().startswith(
        "unable to find data for input tensor 'IN' for model 'identity' in request."
    )


@pytest.mark.spec("srv-G04")
@pytest.mark.parametrize("number", range(len(STATUSES)))
def test_errors_of_models_have_their_status(grpc_client, number):
    error = refusal(grpc_client.infer, "failing", floats(number))
    assert error.status() == f"StatusCode.{STATUSES[number]}"
    assert error.message().endswith(": 100 %, ü")


@pytest.mark.spec("srv-G04")
def test_refusals(server, grpc_client):
    before = server.metrics()
    for inputs, model, version, status, text in (
        (floats(1), "nobody", "", "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        (floats(1), "identity", "7", "NOT_FOUND", "Request for unknown model: 'identity' version 7 is not found"),
        (
            floats(1),
            "identity",
            "x",
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'x' (d",
        ),
        (
            floats(1),
            "identity",
            "-1",
            "INVALID_ARGUMENT",
            "invalid model version specified '-1' , version should be an",
        ),
        (
            given(np.ones((1, 1), np.float32)),
            "identity",
            "",
            "INVALID_ARGUMENT",
            "[request id: <id_unknown>] unexpected sh",
        ),
        (floats(1), "repeat", "", "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction"),
    ):
        error = refusal(grpc_client.infer, model, inputs, model_version=version)
        assert error.status() == f"StatusCode.{status}"
        assert error.message().startswith(text)
    counted = 'pybackend_refused_requests_total{model="identity",protocol="grpc",reason="invalid"}'
    assert server.metrics()[counted] == before.get(counted, 0) + 3


def test_bytes_that_are_no_message(server, snapshot):
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, b"", method="/inference.GRPCInferenceService/ModelGuess")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == snapshot


@pytest.mark.spec("srv-G12")
@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests(grpc_client, compression):
    array = np.zeros(1_000_000, np.float32)
    result = grpc_client.infer("identity", given(array), compression_algorithm=compression)
    np.testing.assert_array_equal(result.as_numpy("OUT"), array)


@pytest.mark.spec("srv-G08")
def test_a_cancelled_call_reaches_the_model(server):
    place = server.repository / "patient"
    with client.InferenceServerClient(server.grpc_url) as own:
        answers = []
        call = own.async_infer("patient", floats(1), lambda result, error: answers.append((result, error)))
        wait_until((place / "began").exists, "the model does not run")
        call.cancel()
        wait_until((place / "cancelled").exists, "the model is not told")
        wait_until(lambda: answers, "the client is not told")
    assert "CANCELLED" in str(answers[0][1])
    for name in ("began", "cancelled"):
        (place / name).unlink()


@pytest.mark.spec("srv-G09")
def test_a_deadline_reaches_the_model(server, grpc_client):
    place = server.repository / "patient"
    for deadline_s in (0.3, 3, 30):  # on a busy machine, a call may be over before its model has begun
        error = refusal(grpc_client.infer, "patient", floats(1), client_timeout=deadline_s)
        assert "Deadline Exceeded" in str(error)
        if (place / "began").exists():
            break
    wait_until((place / "cancelled").exists, "the model is not told")
    for name in ("began", "cancelled"):
        (place / name).unlink()


def test_a_client_that_is_gone_cancels_its_calls(server):
    place = server.repository / "patient"
    own = client.InferenceServerClient(server.grpc_url)
    own.async_infer("patient", floats(1), lambda result, error: None)
    wait_until((place / "began").exists, "the model does not run")
    own.close()
    wait_until((place / "cancelled").exists, "the model is not told")
    for name in ("began", "cancelled"):
        (place / name).unlink()


def test_many_calls_at_once_on_one_connection(server):
    async def scenario():
        async with aio.InferenceServerClient(server.grpc_url) as own:
            arrays = [np.full(1 + number * 50, number, np.float32) for number in range(200)]
            results = await asyncio.gather(*(own.infer("identity", given(array)) for array in arrays))
            for array, result in zip(arrays, results, strict=True):
                np.testing.assert_array_equal(result.as_numpy("OUT"), array)

    asyncio.run(asyncio.wait_for(scenario(), 60))
