"""A front end of another protocol, as short as it can be: it knows bytes, its protocol and admissions, and nothing
else.

A message begins with a line ``<model> <id> <dimensions> <bytes>``; the bytes of its one FP32 input follow. An answer
looks the same, or is a line ``error <id> <text>``. Large inputs arrive in the model's memory; answers come when they
are ready.
"""

import asyncio
from functools import partial
from pathlib import Path

import numpy as np

from pybackend.engine.engine import InferenceEngine, ModelAdmission
from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from tests.integration.models.conftest import running_engine
from tests.support.ensembles import nothing_held
from tests.support.repositories import IDENTITY, identity_config, write_model

MIB = 1024 * 1024


class LineProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._data = bytearray()
        self._message: tuple[ModelAdmission, str, InputTensor, memoryview] | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._take_head() or self._take_body():
            pass

    def _take_head(self) -> bool:
        if self._message is not None or b"\n" not in self._data:
            return False
        line, _, self._data = self._data.partition(b"\n")
        name, number, dimensions, nbytes = line.decode().split()
        try:
            admission = self._engine.open(name)
            (wanted,) = admission.signature.inputs.values()
            tensor = InputTensor(wanted.name, wanted.datatype, [int(each) for each in dimensions.split(",")])
            tensor.lease = admission.allocate(int(nbytes), wanted.name)
            tensor.data = bytearray(int(nbytes)) if tensor.lease is None else tensor.lease.view
            self._message, self._received = (admission, number, tensor, memoryview(tensor.data)), 0
        except InferenceError as error:
            self._fail(number, error)
        return True

    def _take_body(self) -> bool:
        if self._message is None:
            return False
        admission, number, tensor, room = self._message
        count = min(len(self._data), len(room) - self._received)
        room[self._received : self._received + count] = self._data[:count]
        del self._data[:count]
        self._received += count
        if self._received < len(room):
            return False
        self._message = None
        request = InferenceRequest(admission.model_name, admission.model_version, id=number, inputs=[tensor])
        try:
            admission.submit(request, partial(self._on_response, number))
        except InferenceError as error:
            self._fail(number, error)
        return True

    def _on_response(self, number: str, response: InferenceResponse) -> None:
        if response.error is not None:
            self._fail(number, response.error)
        for output in response.outputs:
            head = f"{response.model_name} {number} {','.join(map(str, output.shape))} {len(output.data)}\n"
            self._transport.write(head.encode() + bytes(output.data))
        response.release()

    def _fail(self, number: str, error: InferenceError) -> None:
        self._transport.write(f"error {number} {error.message}\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._message is not None:
            self._message[0].release()


async def _ask(reader, writer, name, number, array):
    head = f"{name} {number} {','.join(map(str, array.shape))} {array.nbytes}\n"
    writer.write(head.encode() + array.tobytes())
    head = (await reader.readline()).decode().split(maxsplit=2)
    if head[0] == "error":
        return head[2].strip()
    shape, nbytes = head[2].split()
    data = await reader.readexactly(int(nbytes))
    return head[1], np.frombuffer(data, np.float32).reshape([int(each) for each in shape.split(",")])


def test_another_protocol_needs_admissions_and_nothing_else(tmp_path):
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_FP32"))
    with running_engine(tmp_path) as (engine, run):

        async def scenario():
            server = await asyncio.get_running_loop().create_server(partial(LineProtocol, engine), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            small, large = np.arange(6, dtype=np.float32), np.arange(MIB, dtype=np.float32)
            for number, array in (("1", small), ("2", large), ("3", small)):
                answered, result = await _ask(reader, writer, "identity", number, array)
                assert answered == number
                np.testing.assert_array_equal(result, array)
            assert "'nobody' is not found" in await _ask(reader, writer, "nobody", "4", np.zeros(0, np.float32))
            assert "unexpected shape" in await _ask(reader, writer, "identity", "5", np.zeros((2, 2), np.float32))
            writer.write(b"identity 6 1048576 4194304\nhalf")  # and gone
            await writer.drain()
            writer.close()
            await nothing_held(engine)
            server.close()
            await server.wait_closed()

        run(asyncio.wait_for(scenario(), 20))
        assert engine.repository.catalogue.find("identity").arena.total_bytes > 0, (
            "the large input went through shared memory"
        )


def test_a_front_end_needs_no_other_module_of_the_engine():
    """What this front end imports is what front ends may know: bytes, requests, responses, errors, and the door."""
    lines = Path(__file__).read_text().splitlines()
    rooms = {line.split(".")[1].split()[0] for line in lines if line.startswith("from pybackend.")}
    assert rooms == {"engine", "errors", "inference"}
