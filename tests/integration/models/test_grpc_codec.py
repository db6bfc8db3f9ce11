"""The codec of gRPC's infer between Triton's own client and real models; grpcio's server carries the bytes."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult, service_pb2
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from pybackend.engine.engine import InferenceEngine, ModelAdmission
from pybackend.errors import InferenceError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import Lease
from pybackend.protocol.grpc.arriving import ArrivingMessage
from pybackend.protocol.grpc.message import InferMessage, split_message
from pybackend.protocol.grpc.request import decode_message, plan_arriving
from pybackend.protocol.grpc.response import encode_message, encode_stream_error, encode_stream_message
from pybackend.protocol.grpc.status import STATUS
from pybackend.protocol.infer_plan import InferPlan, OutputFormat
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches
from pybackend.protocol.steps import Steps, at_once
from tests.integration.models.conftest import running_engine
from tests.support.repositories import IDENTITY, copy_model, identity_config, write_model

STATUS_OF = {status.value[0]: status for status in grpc.StatusCode}
LIMITS = BodyLimits()
FRAME_BYTES, SMALL_BYTES = 16 * 1024, 64 * 1024


class Handler(grpc.GenericRpcHandler):
    """The two methods of inference, as a front end calls the codec."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._plans = PlanCaches()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method == "/inference.GRPCInferenceService/ModelInfer":
            return grpc.unary_unary_rpc_method_handler(self._infer)
        return grpc.stream_stream_rpc_method_handler(self._stream)

    async def _infer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            responses, output_format, _ = self._submit(data)
            response = await responses.get()
            if response.error is not None:
                raise response.error
            try:
                return b"".join(encode_message(response, output_format).pieces)
            finally:
                response.release()
        except InferenceError as error:
            await context.abort(STATUS_OF[STATUS[error.code]], error.message)
            raise AssertionError from error

    async def _stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async for data in requests:
            try:
                responses, output_format, wants_empty_final = self._submit(data)
            except InferenceError as error:
                yield encode_stream_error(error, split_message(data, LIMITS).id)
                continue
            final = False
            while not final:
                response = await responses.get()
                final = response.final
                if response.error is not None:
                    yield encode_stream_error(response.error, response.id, response)
                elif not response.empty or wants_empty_final:
                    yield b"".join(encode_stream_message(response, output_format).pieces)
                response.release()

    def _submit(self, data: bytes) -> tuple[asyncio.Queue[InferenceResponse], OutputFormat, bool]:
        plan, admission = self._read_large(data) if len(data) > SMALL_BYTES else self._read(data, arriving=False)
        responses: asyncio.Queue[InferenceResponse] = asyncio.Queue()
        admission.submit(plan.request, responses.put_nowait, plan.checked)
        return responses, plan.output_format, plan.wants_empty_final

    def _read(self, data: bytes | InferMessage, *, arriving: bool) -> tuple[InferPlan, ModelAdmission]:
        message = split_message(data, LIMITS) if isinstance(data, bytes) else data
        admission = self._engine.open(message.model_name, message.model_version)
        plans = self._plans.of(admission.signature)
        read = plan_arriving if arriving else decode_message
        return read(message, admission.signature, admission.model_version, LIMITS, plans), admission

    def _read_large(self, data: bytes) -> tuple[InferPlan, ModelAdmission]:
        """Read a message as it comes in HTTP/2's frames, into the model's memory."""
        admissions: list[ModelAdmission] = []

        def plan_of(message: InferMessage, arriving: bool) -> Steps[InferPlan]:
            plan, admission = self._read(message, arriving=arriving)
            admissions.append(admission)
            yield
            return plan

        def allocate(size: int, name: str) -> Lease | None:
            return admissions[0].allocate(size, name, arriving=True)

        reader = ArrivingMessage(len(data), LIMITS, plan_of, allocate)
        try:
            for begin in range(0, len(data), FRAME_BYTES):
                reader.feed(data[begin : begin + FRAME_BYTES])
            return at_once(reader.finish()), admissions[0]
        except InferenceError:
            for admission in admissions:
                admission.release()
            raise


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Runs ``scenario(client, address)`` with a client of a server that has the models below."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "numbers", IDENTITY, identity_config("TYPE_FP32"))
    write_model(repository, "texts", IDENTITY, identity_config("TYPE_STRING"))
    copy_model(repository, "repeat")
    with running_engine(repository) as (engine, run):

        async def serve(scenario):
            server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
            server.add_generic_rpc_handlers((Handler(engine),))
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            try:
                async with InferenceServerClient(address) as client:
                    return await asyncio.wait_for(scenario(client, address), 40)
            finally:
                await server.stop(None)

        yield lambda scenario: run(serve(scenario))
        assert engine.repository.catalogue.find("numbers").arena.total_bytes > 0, (
            "large inputs go through shared memory"
        )


def tensor(array, datatype="FP32"):
    return InferInput("IN", list(array.shape), datatype).set_data_from_numpy(array)


def test_arrays_go_there_and_back(ask):
    small, large = np.arange(3, dtype=np.float32), np.arange(300_000, dtype=np.float32)
    texts = np.array([b"", "é".encode(), b"\xff\x00"], dtype=object)

    async def scenario(client, _address):
        for request_id in ("", "1", "2"):
            for array in (small, large, small):
                result = await client.infer("numbers", [tensor(array)], request_id=request_id)
                np.testing.assert_array_equal(result.as_numpy("OUT"), array)
                answer = result.get_response()
                assert (answer.model_name, answer.model_version, answer.id) == ("numbers", "1", request_id)
            for array in (texts, np.repeat(texts, 30_000)):
                result = await client.infer("texts", [tensor(array, "BYTES")], request_id=request_id)
                assert result.as_numpy("OUT").tolist() == array.tolist()

    ask(scenario)


def test_classes(ask):
    async def scenario(client, _address):
        wanted = InferRequestedOutput("OUT", class_count=2)
        result = await client.infer("numbers", [tensor(np.array([1, 3, 2], np.float32))], outputs=[wanted])
        assert result.as_numpy("OUT").tolist() == [b"3.000000:1", b"2.000000:2"]

    ask(scenario)


def test_refusals_have_their_status(ask):
    ints = InferInput("IN", [1], "INT32").set_data_from_numpy(np.array([1], np.int32))

    async def scenario(client, _address):
        found = []
        for model, inputs, options in (
            ("nobody", [tensor(np.zeros(1, np.float32))], {}),
            ("numbers", [ints], {"request_id": "5"}),
            ("numbers", [tensor(np.zeros((2, 50_000), np.float32))], {}),
            ("numbers", [tensor(np.zeros(1, np.float32))], {"model_version": "9"}),
        ):
            with pytest.raises(InferenceServerException) as caught:
                await client.infer(model, inputs, **options)
            found.append((caught.value.status().partition(".")[2], caught.value.message()))
        return found

    assert ask(scenario) == [
        ("NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        (
            "INVALID_ARGUMENT",
            "[request id: 5] inference input 'IN' data-type is 'INT32', but model 'numbers' expects 'FP32': `.astype(np.float32)` makes it",
        ),
        (
            "INVALID_ARGUMENT",
            "[request id: <id_unknown>] unexpected shape for input 'IN' for model 'numbers'. Expected [-1], got [2,50000]. "
            "NOTE: max_batch_size is zero in the model config, so input shapes have no batch dimension.",
        ),
        ("NOT_FOUND", "Request for unknown model: 'numbers' version 9 is not found"),
    ]


def test_a_client_that_sends_lists_of_values(ask):
    request = service_pb2.ModelInferRequest(
        model_name="numbers",
        inputs=[{"name": "IN", "datatype": "FP32", "shape": [2], "contents": {"fp32_contents": [1.5, -2]}}],
    )

    async def scenario(_client, address):
        async with grpc.aio.insecure_channel(address) as channel:
            infer = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            return await infer(request)

    np.testing.assert_array_equal(InferResult(ask(scenario)).as_numpy("OUT"), np.array([1.5, -2], np.float32))


def _request(model, values, request_id, **fields):
    array = np.array(values, np.float32)
    return service_pb2.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=[{"name": "IN", "datatype": "FP32", "shape": array.shape}],
        raw_input_contents=[array.tobytes()],
        **fields,
    )


def test_streams(ask):
    """Each response is its error or its values, its id, and whether it is the last of its request."""
    empty_final = {"triton_enable_empty_final_response": {"bool_param": True}}
    requests = [
        _request("repeat", [2, 1], "some"),
        _request("repeat", [1, -1, 0], "all", parameters=empty_final),
        _request("numbers", [7], "one"),
        _request("nobody", [7], "none"),
    ]

    async def scenario(_client, address):
        async with grpc.aio.insecure_channel(address) as channel:
            stream = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            return [_read(each) async for each in stream(iter(requests))]

    assert ask(scenario) == [
        ([0], "some", False),
        ("no 1", "some", False),
        ([0], "all", False),
        (None, "all", True),
        ([7], "one", True),
        ("Request for unknown model: 'nobody' is not found", "none", False),
    ]


def _read(response):
    inner = response.infer_response
    values = InferResult(inner).as_numpy("OUT")
    return (
        response.error_message or (None if values is None else values.tolist()),
        inner.id,
        inner.parameters["triton_final_response"].bool_param,
    )
