"""The calls that are sent over gRPC, and whether a server's answer to them is right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tests.bench import bodies, repositories
from tests.bench.bodies import WrongReplyError
from tests.bench.loadgen import GrpcCall

STREAMED_RESPONSES = 10_000
STREAMS_PER_CONNECTION = 8

UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAMING = "/inference.GRPCInferenceService/ModelStreamInfer"

ADD_SUB = "add_sub gRPC"
ADD_SUB_STREAMS = f"add_sub gRPC, {STREAMS_PER_CONNECTION} calls per connection"
STREAM = f"{STREAMED_RESPONSES:,} responses of {repositories.STREAMED_ELEMENTS * 4 >> 10} KB over gRPC"

_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_REPLY_TIMEOUT_S = 120


@dataclass(frozen=True)
class GrpcWorkload:
    """One inference request and what must come back.

    Attributes:
        name: how tables call it.
        request: the message, without its prefix.
        call: how it is sent.
        expected: output tensors by name; of a stream, those of its last response.
        tensor_bytes: size of the input tensors.
        in_turns: messages that are sent in turns instead of this one.
    """

    name: str
    request: bytes
    call: GrpcCall
    expected: Mapping[str, npt.NDArray[Any]]
    tensor_bytes: int
    in_turns: tuple[bytes, ...] = ()


def add_sub(streams: int = 1, model: str = repositories.ADD_SUB) -> GrpcWorkload:
    """Two tensors of four numbers, as over HTTP; so many calls at a time on each connection."""
    binary = bodies.add_sub_binary()
    name = ADD_SUB if streams == 1 else ADD_SUB_STREAMS
    return _workload(name, model, bodies.add_sub_inputs(), binary.expected, GrpcCall(UNARY, streams))


def identity(size_bytes: int) -> GrpcWorkload:
    """One FP32 tensor of so many bytes, there and back."""
    data = np.arange(size_bytes // 4, dtype=np.float32)
    return _workload(
        identity_name(size_bytes), repositories.IDENTITY, {"INPUT0": data}, {"OUTPUT0": data}, GrpcCall(UNARY)
    )


def identity_name(size_bytes: int) -> str:
    """How tables call :func:`identity`."""
    return f"identity {bodies.size_name(size_bytes)} gRPC"


def stream() -> GrpcWorkload:
    """Ask a decoupled model for many responses."""
    count = np.array([STREAMED_RESPONSES], np.float32)
    last = np.full(repositories.STREAMED_ELEMENTS, STREAMED_RESPONSES - 1, np.float32)
    call = GrpcCall(STREAMING, messages=STREAMED_RESPONSES)
    return _workload(STREAM, repositories.STREAM, {"INPUT0": count}, {"OUTPUT0": last}, call)


def check(port: int, workload: GrpcWorkload) -> None:
    """Send one request to 127.0.0.1 by grpcio and compare the outputs.

    Raises:
        WrongReplyError: the call failed, or an output or a response is missing or wrong.
    """
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=_ANY_SIZE) as channel:
        try:
            response = _last_response(channel, workload)
        except grpc.RpcError as error:
            raise WrongReplyError(f"{workload.name}: {error}") from error
    found = {
        output.name: np.frombuffer(raw, np.float32).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        if output.name in workload.expected
    }
    for name, expected in workload.expected.items():
        if name not in found or not np.array_equal(found[name], expected):
            raise WrongReplyError(f"{workload.name}: output {name} is {found.get(name)}, not {expected}")


def _last_response(channel: grpc.Channel, workload: GrpcWorkload) -> Any:
    of = service_pb2.ModelInferResponse
    if not workload.call.messages:
        return channel.unary_unary(UNARY, bytes, of.FromString)(workload.request, timeout=_REPLY_TIMEOUT_S)
    method = channel.stream_stream(STREAMING, bytes, service_pb2.ModelStreamInferResponse.FromString)
    responses = list(method(iter([workload.request]), timeout=_REPLY_TIMEOUT_S))
    failures = [each.error_message for each in responses if each.error_message]
    if failures or len(responses) != workload.call.messages:
        raise WrongReplyError(f"{workload.name}: {len(responses)} responses came; {failures[:1]}")
    return responses[-1].infer_response


def _workload(
    name: str,
    model: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    expected: Mapping[str, npt.NDArray[Any]],
    call: GrpcCall,
) -> GrpcWorkload:
    message = service_pb2.ModelInferRequest(model_name=model)
    for tensor, data in inputs.items():
        message.inputs.add(name=tensor, datatype="FP32", shape=data.shape)
        message.raw_input_contents.append(data.tobytes())
    tensor_bytes = sum(data.nbytes for data in inputs.values())
    return GrpcWorkload(name, message.SerializeToString(), call, expected, tensor_bytes)
