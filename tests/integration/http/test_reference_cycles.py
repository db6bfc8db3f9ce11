"""Requests, connections and models' processes leave no reference cycles: these would keep memory until the collector
runs."""

import asyncio
import gc
import json
from collections import Counter

import grpc
import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from pybackend.engine.engine import ModelAdmission
from pybackend.engine.response_stream import ResponseStream
from pybackend.frontend.calls.model_calls import OpenCall
from pybackend.frontend.grpc.arriving_request import LARGE_MESSAGE_BYTES, ArrivingRequest
from pybackend.frontend.grpc.call import GrpcCall
from pybackend.frontend.grpc.connection import GrpcConnection
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.http.connection import Exchange, HttpConnection
from pybackend.frontend.http.infer_body import StreamedBody
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.instance.session import StubSession
from pybackend.ipc.channel import StubChannel
from pybackend.protocol.grpc.arriving import ArrivingMessage
from pybackend_http2 import RequestHead, ServerConnection, Stream
from pybackend_http2.control import ControlFrames
from pybackend_http2.core import ConnectionCore
from pybackend_http2.header_decoder import HeaderDecoder
from pybackend_wire.framing import FrameDecoder
from tests.integration.http.test_shortcut import serving
from tests.support.connection import post
from tests.support.grpc_calls import INFER, STREAM_INFER, grpc_port
from tests.support.repositories import copy_model

DEADLINE_S = 60
KINDS = (
    ModelAdmission, ArrivingMessage, ArrivingRequest, GrpcCall, CallHead, ConnectionCore, ControlFrames, GrpcConnection, HeaderDecoder,
    Exchange, FrameDecoder, HttpConnection, InferenceRequest, OpenCall, PendingRequest, RequestHead, ResponseStream, ServerConnection, Stream,
    StreamedBody, StubChannel, StubSession,
)  # fmt: skip
MODELS = ("add_squares", "countdown_to", "double", "repeat")
LARGE = 1 << 20


def alive():
    """The objects' identities, and the names of their types: a report of the objects themselves would have no end."""
    return {id(each): type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS)}


def text(*values, datatype="FP32"):
    return json.dumps(
        {"inputs": [{"name": "IN", "datatype": datatype, "shape": [len(values)], "data": values}]}
    ).encode()


def message(model, values):
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
    request.raw_input_contents.append(np.array(values, np.float32).tobytes())
    return request


async def over_http(address):
    """A call between models; an upload with a broken JSON part; a stream."""
    for path, body, headers, wanted in (
        ("add_squares/infer", text(3, datatype="INT32"), {}, b"200"),
        ("double/infer", bytes(LARGE), {"Inference-Header-Content-Length": "5"}, b"500"),
        ("repeat/generate_stream", b'{"IN": [3]}', {}, b"200"),
    ):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post(f"/v2/models/{path}", body, headers))
        head = await reader.readuntil(b"\r\n")
        assert wanted in head, head
        await reader.readuntil(b"\r\n\r\n")
        if path.startswith("repeat"):
            await reader.readuntil(b"0\r\n\r\n")
        writer.transport.abort()


def over_grpc(port):
    """Requests, one that is refused, and streams: one to its end, one whose client leaves."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        serialize = service_pb2.ModelInferRequest.SerializeToString
        infer = channel.unary_unary(INFER, serialize, service_pb2.ModelInferResponse.FromString)
        stream = channel.stream_stream(STREAM_INFER, serialize, service_pb2.ModelStreamInferResponse.FromString)
        for _ in range(3):  # the third takes the shortcut
            infer(message("double", [1.0]), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError, match="nobody"):
            infer(message("nobody", [1.0]), timeout=DEADLINE_S)
        infer(message("double", np.zeros(LARGE_MESSAGE_BYTES)), timeout=DEADLINE_S)
        too_long = message("double", np.zeros(LARGE_MESSAGE_BYTES))
        too_long.inputs[0].shape[0] += 1
        with pytest.raises(grpc.RpcError, match="byte size"):
            infer(too_long, timeout=DEADLINE_S)
        answers = list(stream(iter([message("double", [1.0]), message("repeat", [2.0])]), timeout=DEADLINE_S))
        assert len(answers) == 3
        leaving = stream(iter([message("repeat", [20000.0])]), timeout=DEADLINE_S)
        next(leaving)
        leaving.cancel()


async def assert_that_it_leaves_nothing(act):
    """Do something three times, and once more without the garbage collector: no objects of the kinds above are left."""
    for _ in range(3):
        await act()  # the server remembers what comes twice
    gc.collect()
    gc.freeze()  # for good: the objects of all tests before this one take seconds to look at, here and in later tests
    gc.disable()
    try:
        before = alive()
        await act()
        async with asyncio.timeout(DEADLINE_S):
            while alive().keys() - before.keys():  # noqa: ASYNC110  until the server has noticed who left
                await asyncio.sleep(0.01)
    except TimeoutError:
        left = Counter(name for key, name in alive().items() if key not in before)
        raise AssertionError(left) from None
    finally:
        gc.enable()


def test_requests_and_connections_leave_no_reference_cycles(tmp_path):
    for name in MODELS:
        copy_model(tmp_path, name)

    async def main():
        async with serving(tmp_path, startup_models=MODELS) as (engine, client), grpc_port(engine) as port:
            address = client.writer.get_extra_info("peername")

            async def round_of_requests():
                await over_http(address)
                await asyncio.to_thread(over_grpc, port.address[1])

            await assert_that_it_leaves_nothing(round_of_requests)

    uvloop.run(main())


def test_the_processes_of_unloaded_models_leave_no_reference_cycles(tmp_path):
    copy_model(tmp_path, "double")

    async def main():
        async with serving(tmp_path, startup_models=()) as (engine, client):
            address = client.writer.get_extra_info("peername")

            async def life_of_a_model():
                await engine.control.load("double")
                reader, writer = await asyncio.open_connection(*address)
                writer.write(post("/v2/models/double/infer", text(1)))
                assert b"200" in await reader.readuntil(b"\r\n")
                writer.transport.abort()
                await engine.control.unload("double")

            await assert_that_it_leaves_nothing(life_of_a_model)

    uvloop.run(main())
