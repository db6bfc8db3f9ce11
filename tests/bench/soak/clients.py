"""The clients of the soak. Each opens a connection, sends a few requests of one kind, checks every answer, and goes.

A connection is a session of its own, so that connections come and go all the time; deserters leave in the middle of a
request.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

DEADLINE_S = 60
SERVICE = "/inference.GRPCInferenceService"

CASUALTIES = (
    "is not healthy",  # the process was killed
    "must specify the START flag on the first request of the sequence",  # the sequence died with its process
    "the sequence",
    "is not ready",
    "has no process",
    "no available",
)
"""What errors contain that follow from the death of a process; any other error is a failure of the run."""


class WrongAnswerError(Exception):
    """An answer is not the right one."""


class RefusedError(Exception):
    """The server answered with an error."""


class Tally:
    """What was sent and what came of it.

    Attributes:
        requests: answered rightly, by kind.
        casualties: errors that the death of a process explains, by kind.
        failures: everything else, by text.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.casualties: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.requests.total() + self.casualties.total()


class Http:
    """One connection that stays open for several requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> Http:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        self._writer.transport.abort()

    def send(self, path: str, body: bytes, headers: str = "", *, length: int | None = None) -> None:
        """Send a request, or as much of it as is given if ``length`` announces more."""
        size = len(body) if length is None else length
        head = f"POST /v2/models/{path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {size}\r\n\r\n"
        self._writer.write(head.encode() + body)

    async def reply(self) -> bytes:
        """The body of the next reply, decompressed.

        Raises:
            RefusedError: its status is none of success.
        """
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        if b"content-length" in fields:
            body = await self._reader.readexactly(int(fields[b"content-length"]))
        else:
            body = await self._chunks()
        if fields.get(b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
        if b" 200 " not in head[:20]:
            raise RefusedError(json.loads(body)["error"])
        return body

    async def _chunks(self) -> bytes:
        found = b""
        while size := int(await self._reader.readline(), 16):
            found += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return found


def expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise WrongAnswerError(f"{str(found)[:200]} is not {str(wanted)[:200]}")


def document(values: list[float], datatype: str = "FP32", **parameters: Any) -> bytes:
    """A request with one tensor as JSON."""
    tensor = {"name": "IN", "datatype": datatype, "shape": [len(values)], "data": values}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def values_of(body: bytes) -> list[float]:
    (output,) = json.loads(body)["outputs"]
    return output["data"]


def numbers(most: int = 8) -> list[float]:
    return [float(random.randrange(1000)) for _ in range(random.randint(1, most))]


# --- over HTTP ---


async def http_json(http: Http) -> None:
    values = numbers()
    http.send("identity/infer", document(values))
    expect(values_of(await http.reply()), values)


async def http_binary(http: Http) -> None:
    values = numbers(random.choice([8, 8, 8, 2000, 50_000]))
    data = struct.pack(f"<{len(values)}f", *values)
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(values)], "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    http.send("identity/infer", text + data, f"Inference-Header-Content-Length: {len(text)}\r\n")
    expect((await http.reply())[-len(data) :], data)


async def http_compressed(http: Http) -> None:
    values = numbers(200)
    http.send("identity/infer", gzip.compress(document(values)), "Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\n")
    expect(values_of(await http.reply()), values)


async def bls(http: Http) -> None:
    number = random.randint(1, 4)
    http.send("add_squares/infer", document([number], "INT32"))
    expect(values_of(await http.reply()), [number**2])


async def ensemble(http: Http) -> None:
    values = numbers()
    http.send("quadruple/infer", document(values))
    expect(values_of(await http.reply()), [4 * value for value in values])


async def batched(http: Http) -> None:
    value = float(random.randrange(1000))
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    http.send("batched/infer", json.dumps({"inputs": [tensor]}).encode())
    expect(values_of(await http.reply()), [value])


async def generate(http: Http) -> None:
    count = random.randint(0, 5)
    http.send("repeat/generate_stream", json.dumps({"IN": [count]}).encode())
    events = [json.loads(line[6:]) for line in (await http.reply()).split(b"\n\n") if line]
    for event in events:
        if "error" in event:
            raise RefusedError(event["error"])
    expect([event["OUT"] for event in events], list(range(count)))


async def refused(http: Http) -> None:
    """Requests that are wrong are answered too."""
    path, body = random.choice(
        [("nobody/infer", b"{}"), ("identity/infer", b'{"inputs": [}'), ("identity/infer", b"{}")]
    )
    http.send(path, body)
    try:
        await http.reply()
    except RefusedError:
        return
    raise WrongAnswerError(f"{path} took {body!r}")


async def latencies_us(port: int, count: int) -> list[float]:
    """The times of so many requests of a single client, ascending."""
    http = await Http.connect(port)
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await http_json(http)
        found.append((time.perf_counter() - began) * 1e6)
    http.close()
    return sorted(found)


# --- over gRPC ---


def message(model: str, values: list[float], datatype: str = "FP32", **parameters: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype=datatype, shape=[len(values)])
    code = {"FP32": "f", "INT32": "i"}[datatype]
    request.raw_input_contents.append(struct.pack(f"<{len(values)}{code}", *values))
    for name, value in parameters.items():
        field = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], field, value)
    return request


def raw(response: Any) -> bytes:
    return b"".join(response.raw_output_contents)


class Grpc:
    """One channel."""

    def __init__(self, address: str) -> None:
        # Without its own pool, every channel of this process would share one connection.
        self.channel = grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.infer = self.channel.unary_unary(
            f"{SERVICE}/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        self.stream = self.channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )


async def grpc_unary(client: Grpc) -> None:
    values = numbers(random.choice([8, 8, 8, 20_000]))
    request = message("identity", values)
    compression = random.choice([grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate])
    answer = await client.infer(request, timeout=DEADLINE_S, compression=compression)
    expect(raw(answer), request.raw_input_contents[0])


async def grpc_stream(client: Grpc) -> None:
    """Ten requests on one stream, answered in their order."""
    requests = [message(random.choice(["identity", "double"]), numbers()) for _ in range(10)]
    place = 0
    async for answer in client.stream(iter(requests), timeout=DEADLINE_S):
        if answer.error_message:
            raise RefusedError(answer.error_message)
        factor = 2 if requests[place].model_name == "double" else 1
        expect(
            [v / factor for (v,) in struct.iter_unpack("<f", raw(answer.infer_response))],
            [v for (v,) in struct.iter_unpack("<f", requests[place].raw_input_contents[0])],
        )
        place += 1
    expect(place, len(requests))


async def grpc_decoupled(client: Grpc) -> None:
    count = random.randint(0, 5)
    request = message("repeat", [float(count)], triton_enable_empty_final_response=True)
    found = []
    async for answer in client.stream(iter([request]), timeout=DEADLINE_S):
        if answer.error_message:
            raise RefusedError(answer.error_message)
        found += struct.iter_unpack("<f", raw(answer.infer_response))
    expect([value for (value,) in found], list(range(count)))


async def sequence(client: Grpc) -> None:
    key, total = random.randrange(1, 2**62), 0
    for number in range(5):
        total += number
        request = message(
            "sum", [number], "INT32", sequence_id=key, sequence_start=number == 0, sequence_end=number == 4
        )
        expect(struct.unpack("<i", raw(await client.infer(request, timeout=DEADLINE_S))), (total,))


HTTP_KINDS = (http_json, http_binary, http_compressed, bls, ensemble, batched, generate, refused)
GRPC_KINDS = (grpc_unary, grpc_stream, grpc_decoupled, sequence)
COUNTS = {"grpc_stream": 10, "sequence": 5}
"""Requests in one call of a kind, where it is not one."""


# --- sessions ---


async def _repeat(kind: Callable[[Any], Awaitable[None]], client: Any, tally: Tally) -> None:
    name = kind.__name__
    for _ in range(random.randint(1, 60) // COUNTS.get(name, 1) + 1):
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                await kind(client)
            tally.requests[name] += COUNTS.get(name, 1)
        except (RefusedError, grpc.aio.AioRpcError) as error:
            text = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            if any(part in text for part in CASUALTIES):
                tally.casualties[name] += 1
            else:
                tally.failures[f"{name}: {text[:300]}"] += 1


async def session(kind: Callable[[Any], Awaitable[None]], port: int, grpc_address: str, tally: Tally) -> None:
    """One client: it connects, sends requests of one kind, and closes."""
    try:
        if kind in HTTP_KINDS:
            http = await Http.connect(port)
            try:
                await _repeat(kind, http, tally)
            finally:
                http.close()
        else:
            client = Grpc(grpc_address)
            async with client.channel:
                await _repeat(kind, client, tally)
    except (WrongAnswerError, TimeoutError, OSError, EOFError, grpc.RpcError) as error:
        tally.failures[f"{kind.__name__}: {type(error).__name__}: {str(error)[:300]}"] += 1


async def deserter(port: int, grpc_address: str, tally: Tally) -> None:
    """A client that leaves: in its head, in its body, before its answer, or in the middle of it."""
    way = random.randrange(5)
    if way == 4:
        client = Grpc(grpc_address)
        async with client.channel:
            call = client.stream(_endless(), timeout=DEADLINE_S)
            await anext(aiter(call), None)
            call.cancel()
    else:
        http = await Http.connect(port)
        body = document(numbers(100))
        if way == 0:
            http.send("identity/infer", body[:-5], length=len(body))
        elif way == 1:
            http.send("slow/infer", document([1.0]))
        elif way == 2:
            http.send("repeat/generate_stream", json.dumps({"IN": [2000]}).encode())
        else:
            http.send("identity/infer", bytes(200_000), "Inference-Header-Content-Length: 5\r\n", length=1_000_000)
        await asyncio.sleep(random.random() / 20)
        http.close()
    tally.requests["deserters"] += 1


async def _endless() -> AsyncIterator[Any]:
    while True:
        yield message("repeat", [50.0])
        await asyncio.sleep(0.01)
