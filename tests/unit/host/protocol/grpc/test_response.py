"""Triton's client reads what is written, and large tensors are not copied on the way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import InferResult, service_pb2

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.protocol.classification import ClassRequest
from pybackend.protocol.grpc.response import encode_message, encode_stream_error, encode_stream_message
from pybackend.protocol.infer_plan import ALL_BINARY, OutputFormat

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
OUTPUTS = st.lists(
    st.builds(
        OutputTensor,
        TEXT,
        st.sampled_from(["FP32", "BYTES", "INT8"]),
        st.lists(st.integers(0, 2**40), max_size=3),
        st.one_of(st.binary(max_size=20), st.integers(4000, 5000).map(lambda size: memoryview(bytes(size)))),
    ),
    max_size=3,
)
PARAMETERS = st.dictionaries(
    TEXT,
    st.one_of(st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), TEXT),
    max_size=3,
)


def result(outputs=(), parameters=None, *, request_id="", final=True, empty=False):
    return InferenceResponse("m", "1", request_id, list(outputs), parameters, final=final, empty=empty)


def theirs(encoded, of=service_pb2.ModelInferResponse):
    data = b"".join(encoded.pieces)
    assert len(data) == encoded.nbytes
    return of.FromString(data)


def value(parameter):
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


@given(outputs=OUTPUTS, parameters=PARAMETERS, request_id=TEXT, final=st.booleans())
@settings(max_examples=150)
def test_the_client_reads_any_response(outputs, parameters, request_id, final):
    response = result(outputs, parameters, request_id=request_id, final=final)
    message = theirs(encode_message(response, ALL_BINARY))
    assert (message.model_name, message.model_version, message.id) == ("m", "1", request_id)
    assert {name: value(each) for name, each in message.parameters.items()} == parameters
    found = [(each.name, each.datatype, list(each.shape)) for each in message.outputs]
    assert found == [(each.name, each.datatype, each.shape) for each in outputs]
    assert list(message.raw_output_contents) == [bytes(each.data) for each in outputs]
    streamed = theirs(encode_stream_message(response, ALL_BINARY), service_pb2.ModelStreamInferResponse)
    message.parameters["triton_final_response"].bool_param = final
    assert streamed == service_pb2.ModelStreamInferResponse(infer_response=message)


def test_large_tensors_are_sent_from_where_they_lie():
    first, second = memoryview(bytearray(b"a" * 5000)), memoryview(bytearray(b"b" * 5000))
    outputs = [OutputTensor(name, "INT8", (len(data),), data) for name, data in (("X", first), ("Y", second))]
    small = OutputTensor("Z", "INT8", (1,), memoryview(bytearray(b"z")))
    encoded = encode_message(result([*outputs, small]), ALL_BINARY)
    head, one, tag, other, rest = encoded.pieces
    assert one is first
    assert other is second
    assert {type(each) for each in (head, tag, rest)} == {bytes}
    assert encoded.borrows_memory
    assert list(theirs(encoded).raw_output_contents) == [b"a" * 5000, b"b" * 5000, b"z"]


def test_small_tensors_are_copied_into_one_piece():
    data = bytearray(b"abcd")
    encoded = encode_message(result([OutputTensor("X", "INT8", (4,), memoryview(data))]), ALL_BINARY)
    data[:] = b"gone"
    assert len(encoded.pieces) == 1
    assert not encoded.borrows_memory
    assert theirs(encoded).raw_output_contents[0] == b"abcd"


def test_private_bytes_are_not_borrowed():
    encoded = encode_message(result([OutputTensor("X", "INT8", (5000,), b"a" * 5000)]), ALL_BINARY)
    assert not encoded.borrows_memory


def test_the_client_reads_arrays():
    values = np.array([[1.5, -2]], np.float32)
    encoded = encode_message(result([OutputTensor("X", "FP32", (1, 2), values.tobytes())]), ALL_BINARY)
    np.testing.assert_array_equal(InferResult(theirs(encoded)).as_numpy("X"), values)


def test_classes_replace_the_tensor():
    wanted = OutputFormat(binary_default=True, classes={"X": ClassRequest(2, batches=True, labels=(b"", b"cat"))})
    values = np.array([[1, 3, 2]], np.float32)
    encoded = encode_message(result([OutputTensor("X", "FP32", (1, 3), values.tobytes())]), wanted)
    message = theirs(encoded)
    assert (message.outputs[0].datatype, list(message.outputs[0].shape)) == ("BYTES", [1, 2])
    assert InferResult(message).as_numpy("X").tolist() == [[b"3.000000:1:cat", b"2.000000:2"]]


@pytest.mark.parametrize(("empty", "final"), [(True, True), (False, True), (False, False)])
def test_a_streamed_response_says_whether_it_is_the_last(empty, final):
    encoded = encode_stream_message(result(empty=empty, final=final, request_id="7"), ALL_BINARY)
    inner = theirs(encoded, service_pb2.ModelStreamInferResponse).infer_response
    assert (inner.id, len(inner.outputs), inner.parameters["triton_final_response"].bool_param) == ("7", 0, final)


def test_a_failure_before_execution_has_the_id_only():
    message = service_pb2.ModelStreamInferResponse.FromString(encode_stream_error(InferenceError("no\udcff"), "7"))
    assert message == service_pb2.ModelStreamInferResponse(error_message="no?", infer_response={"id": "7"})


def test_a_failure_of_an_execution_has_model_and_final_flag():
    error = InferenceError("broken")
    failed = InferenceResponse("m", "1", "7", error=error, final=False)
    message = service_pb2.ModelStreamInferResponse.FromString(encode_stream_error(error, "7", failed))
    inner = {"model_name": "m", "model_version": "1", "id": "7", "parameters": {}}
    inner["parameters"]["triton_final_response"] = {"bool_param": False}
    assert message == service_pb2.ModelStreamInferResponse(error_message="broken", infer_response=inner)


def test_text_that_is_not_unicode_does_not_break_the_answer():
    outputs = [OutputTensor("a\ud800", "INT8", (1,), b"1")]
    message = theirs(encode_message(result(outputs, {"k\udfff": "v\ud900"}, request_id="i\ud801"), ALL_BINARY))
    assert (message.id, message.outputs[0].name, value(message.parameters["k?"])) == ("i?", "a?", "v?")


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_a_parameter_that_no_field_can_hold(number, refusal):
    assert refusal(encode_message, result(parameters={"k": number}), ALL_BINARY) == (
        ErrorCode.INTERNAL,
        f"the response's parameter 'k' is {number}, which does not fit in 64 bits",
    )


class Long(bytes):
    """Stands for tensors that this machine need not have: only its length is read."""

    def __len__(self):
        return 2**30


def test_a_response_that_is_too_large(refusal):
    outputs = [OutputTensor(name, "INT8", (2**30,), Long()) for name in "XY"]
    code, text = refusal(encode_message, result(outputs), ALL_BINARY)
    assert code is ErrorCode.INVALID_ARG
    assert text.startswith("Response has byte size ")
    assert text.endswith(" which exceeds gRPC's byte size limit 2147483647.")
    assert int(text.split()[4]) > 2**31
