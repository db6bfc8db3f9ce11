"""The protocol over HTTP: calls as requests with bodies, and connections that carry them, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from pybackend_client.connection import Address, Events, Reply, model_path
from pybackend_client.errors import ClientError, ConnectionLostError, DeadlineError, UnreachableError, refused
from pybackend_client.inference import Request, decoded, encoded, flat_values
from pybackend_client.tensors import Answer, Ask, Metadata
from pybackend_client.values import ModelTensor, Tensor
from pybackend_wire.dtypes import DATATYPES

_LENGTH = "Inference-Header-Content-Length"
_MOST_HEAD_BYTES = 64 * 1024
_READ_BYTES = 1024 * 1024

_TROUBLE = (OSError, EOFError, ValueError, IndexError, http.client.HTTPException, asyncio.LimitOverrunError)
"""The errors of connections that end, are late, or do not speak HTTP."""


class HttpCall(NamedTuple):
    """A request, and how its answer is read. ``accepts`` are the statuses that are no errors."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    read: Callable[[Reply, int], Any]
    accepts: frozenset[int] = frozenset({200})


class HttpCodec:
    """Makes calls."""

    def ready(self, model: str, version: str) -> HttpCall:
        path = f"{model_path(model, version)}/ready" if model else "/v2/health/ready"
        return HttpCall("GET", path, b"", {}, lambda _reply, status: status == 200, frozenset({200, 400, 404, 503}))

    def metadata(self, model: str, version: str) -> HttpCall:
        return HttpCall("GET", model_path(model, version), b"", {}, lambda reply, _: _metadata(json.loads(reply.body)))

    def configuration(self, model: str, version: str) -> HttpCall:
        return HttpCall(
            "GET", f"{model_path(model, version)}/config", b"", {}, lambda reply, _: dict(json.loads(reply.body))
        )

    def infer(self, ask: Ask, tensors: list[Tensor]) -> HttpCall:
        asked = Request(
            ask.model, ask.version, outputs=ask.outputs, parameters=ask.parameters, request_id=ask.request_id
        )
        body, header_bytes = encoded(asked, tensors, binary=True)
        headers = {**ask.headers, "Content-Type": "application/octet-stream", _LENGTH: str(header_bytes)}
        return HttpCall(
            "POST", f"{model_path(ask.model, ask.version)}/infer", body, headers, lambda reply, _: _answer(reply)
        )

    def stream(self, ask: Ask, tensors: list[Tensor], metadata: Metadata) -> HttpCall:
        document: dict[str, Any] = {"parameters": dict(ask.parameters)}
        for tensor in tensors:
            document[tensor.name] = flat_values(tensor, metadata.inputs[tensor.name])
        if ask.request_id:
            document["id"] = ask.request_id
        path = f"{model_path(ask.model, ask.version)}/generate_stream"
        headers = {**ask.headers, "Content-Type": "application/json"}
        return HttpCall(
            "POST", path, json.dumps(document).encode(), headers, lambda reply, _: _event(reply.body, ask, metadata)
        )

    def route(self, method: str, path: str, document: Any) -> HttpCall:
        body = b"" if document is None else json.dumps(document).encode()
        return HttpCall(
            method,
            path,
            body,
            {"Content-Type": "application/json"} if body else {},
            lambda reply, _: json.loads(reply.body) if reply.body else None,
        )


def _metadata(document: Any) -> Metadata:
    def tensors(kind: str) -> dict[str, ModelTensor]:
        return {
            each["name"]: ModelTensor(each["name"], each["datatype"], tuple(map(int, each["shape"])))
            for each in document[kind]
        }

    return Metadata(document["name"], tuple(document.get("versions", ())), tensors("inputs"), tensors("outputs"))


def _answer(reply: Reply) -> Answer:
    found = decoded(reply)
    document = found.document
    outputs: dict[str, Any] = {}
    for each in found.outputs:
        outputs.setdefault(each.name, each.values)
    return Answer(outputs, document.get("model_version", ""), document.get("id", ""), document.get("parameters"))


def _event(text: bytes, ask: Ask, metadata: Metadata) -> Answer:
    """A response of a stream: its outputs are flat."""
    document = json.loads(text)
    if set(document) == {"error"}:
        raise refused(document["error"], 500)
    outputs = {}
    for name, wanted in metadata.outputs.items():
        if name in document and (not ask.outputs or name in ask.outputs):
            values = document.pop(name)
            listed = values if isinstance(values, list) else [values]
            outputs[name] = _array(listed, wanted.datatype)
    version = document.pop("model_version", "")
    document.pop("model_name", "")
    return Answer(outputs, version, document.pop("id", ""), document)


def _array(values: list[Any], datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        array = np.empty(len(values), object)
        array[:] = [str(value).encode() for value in values]
        return array
    return np.array(values, np.float32 if datatype == "BF16" else DATATYPES[datatype].numpy)


def _checked(call: HttpCall, status: int, reply: Reply) -> Any:
    """The result of a call; raises ClientError."""
    if status in call.accepts:
        try:
            return call.read(reply, status)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ClientError(f"the server's answer is not of the v2 protocol: {error}") from None
    try:
        document = json.loads(reply.body)
        message = str(document["error"] if "error" in document else document["message"])  # MLflow's routes
    except (ValueError, KeyError, TypeError):
        message = f"status {status}, and a body that the v2 protocol does not know"
    raise refused(message, status)


class Server:
    """The place of a server, and what each request to it says."""

    def __init__(self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None) -> None:
        self.address = Address(url)
        self.headers = headers
        self.context = (context or ssl.create_default_context()) if self.address.is_secure else None

    def unreachable(self, error: Exception) -> UnreachableError:
        reason = getattr(error, "strerror", None) or error
        return UnreachableError(f"no server answers at {self.address.url}: {reason}")

    @contextmanager
    def exchange(self, timeout_s: float) -> Iterator[ExitStack]:
        """Closes the connection that its user has put on the stack and not taken from there, and raises ClientError for trouble."""
        with ExitStack() as opened:
            try:
                yield opened
            except ClientError:
                raise
            except TimeoutError:
                raise DeadlineError(f"{self.address.url} has not answered within {timeout_s:.3g} s") from None
            except _TROUBLE as error:
                reason = str(error) or "it was closed"
                raise ConnectionLostError(
                    f"the connection to {self.address.url} ended before the answer: {reason}"
                ) from None


def _read_until(sock: socket.socket, response: http.client.HTTPResponse, end_s: float) -> bytes:
    """The whole body; raises TimeoutError at the end of the time, although parts of the body may still arrive."""
    parts: list[bytes] = []
    left_bytes = response.length  # None for chunks, and for a body that ends with the connection
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if sock is not None:  # the response has it alone if it ends with the connection
            sock.settimeout(left_s)
        part = response.read1(_READ_BYTES)
        if left_bytes is not None:
            left_bytes -= len(part)
        if not part:
            if left_bytes:
                raise EOFError(f"{left_bytes} bytes of it are missing")
            response.close()  # the connection can be used again
            return b"".join(parts)
        parts.append(part)


class HttpTransport:
    """A pool of connections for threads. It opens as many as there are requests at a time, and keeps ``most``."""

    def __init__(self, server: Server, most: int) -> None:
        self._server = server
        self._most = most
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def send(self, call: HttpCall, timeout_s: float) -> Any:
        """The result of a call; raises ClientError."""
        end_s = time.monotonic() + timeout_s
        with self._server.exchange(timeout_s) as opened:
            connection, response = self._answered(call, timeout_s, opened)
            body = _read_until(connection.sock, response, end_s)
            reply = Reply({name.lower(): value for name, value in response.getheaders()}, body)
            if not response.will_close:
                opened.pop_all()
                self._keep(connection)
        return _checked(call, response.status, reply)

    def stream(self, call: HttpCall, timeout_s: float) -> Iterator[Any]:
        """The results of a stream, one by one; its end closes the connection."""
        with self._server.exchange(timeout_s) as opened:
            _, response = self._answered(call, timeout_s, opened)
            if response.status != 200 and not Events.are_in(response.getheader("content-type", "")):
                _checked(call, response.status, Reply({}, response.read()))
            for event in Events.of(response):
                yield _checked(call, response.status, Reply({}, event))

    def _answered(
        self, call: HttpCall, timeout_s: float, opened: ExitStack
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = opened.enter_context(closing(self._connected(timeout_s)))
        path = self._server.address.prefix + call.path
        connection.request(call.method, path, call.body or None, {**self._server.headers, **call.headers})
        return connection, connection.getresponse()

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not _has_ended(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        made = self._server.address.connection(timeout_s, self._server.context)
        try:
            made.connect()
        except OSError as error:
            made.close()
            raise self._server.unreachable(error) from None
        return made

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()


def _has_ended(sock: socket.socket) -> bool:
    """Whether the server has closed an idle connection: nothing else can arrive there."""
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(0))


class AsyncHttpTransport:
    """A pool of connections for coroutines of one event loop."""

    def __init__(self, server: Server, most: int) -> None:
        self._server = server
        self._most = most
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for _, writer in idle:
            await _closed(writer)

    async def send(self, call: HttpCall, timeout_s: float) -> Any:
        """The result of a call; raises ClientError."""
        with self._server.exchange(timeout_s) as opened:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._connected(opened)
                self._write(writer, call)
                status, headers = await self._head(reader)
                body = await _body(reader, headers)
            opened.pop_all()
        if headers.get("connection", "").lower() == "close" or len(self._idle) >= self._most:
            await _closed(writer)
        else:
            self._idle.append((reader, writer))
        return _checked(call, status, Reply(headers, body))

    async def stream(self, call: HttpCall, timeout_s: float) -> AsyncIterator[Any]:
        """The results of a stream, one by one; its end closes the connection."""
        with self._server.exchange(timeout_s) as opened:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._connected(opened)
                self._write(writer, call)
                status, headers = await self._head(reader)
                if status != 200 and not Events.are_in(headers.get("content-type", "")):
                    _checked(call, status, Reply(headers, await _body(reader, headers)))
            events = Events()
            try:
                async for piece in _pieces(reader, headers, timeout_s):
                    for event in events.in_part(piece):
                        yield _checked(call, status, Reply({}, event))
            finally:
                await _closed(writer)

    async def _connected(self, opened: ExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                break
            writer.close()
        else:
            address = self._server.address
            try:
                reader, writer = await (
                    asyncio.open_unix_connection(address.path, limit=_MOST_HEAD_BYTES)
                    if address.path
                    else asyncio.open_connection(
                        address.host, address.port, ssl=self._server.context, limit=_MOST_HEAD_BYTES
                    )
                )
            except OSError as error:
                raise self._server.unreachable(error) from None
        opened.callback(writer.close)
        return reader, writer

    def _write(self, writer: asyncio.StreamWriter, call: HttpCall) -> None:
        address = self._server.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        own = {"Host": f"{host}:{address.port}"}
        given = {**self._server.headers, **call.headers, "Content-Length": str(len(call.body))}
        names = {name.lower() for name in given}
        fields = {**{name: value for name, value in own.items() if name.lower() not in names}, **given}
        head = f"{call.method} {address.prefix}{call.path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(head.encode("latin-1") + b"\r\n")
        writer.write(call.body)

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        while True:
            text = await reader.readuntil(b"\r\n\r\n")
            first, *lines = text.decode("latin-1").rstrip().split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200:
                pairs = (line.partition(":") for line in lines)
                return status, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    return b"".join([piece async for piece in _pieces(reader, headers, None)])


async def _pieces(
    reader: asyncio.StreamReader, headers: Mapping[str, str], timeout_s: float | None
) -> AsyncIterator[bytes]:
    """The pieces of a body; each must arrive in time."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        async with asyncio.timeout(timeout_s):
            length = headers.get("content-length")
            yield await (reader.read() if length is None else reader.readexactly(int(length)))
        return
    while True:
        async with asyncio.timeout(timeout_s):
            size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
            piece = (await reader.readexactly(size + 2))[:-2]
        if not size:
            return
        yield piece
