"""Calls of models to those of other pools: from this server to one of theirs, over gRPC."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from pybackend.errors import ErrorCode, InferenceError, ServerError, UnknownModelError
from pybackend.frontend.calls.not_ready import not_ready
from pybackend.frontend.calls.other_servers import OtherServers
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.inference.pending import PendingRequest, RequestHolder
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES
from pybackend.instance.executor import InstanceExecutor
from pybackend.model.model import Model
from pybackend.pools import Pools, read_pools
from pybackend.protocol.grpc.outgoing import (
    CODES,
    decode_readiness,
    decode_response,
    decode_stream_response,
    encode_question,
    encode_request,
)
from pybackend_wire.installation import install_command

try:
    import grpc
    import grpc.aio
except ImportError:
    raise ServerError(f"--pools-file needs the package grpcio: {install_command('ray')}") from None

PATH = "pybackend_path"
"""The parameter of calls that names the models that wait for the answer, as a JSON list, after a signature with the
servers' headers: one that a client makes up does not count. Ensembles give it to their steps."""

MOST_WAITING = 8
"""Models of such a path."""

_SERVICE = "/inference.GRPCInferenceService/"
_READY_S = 10.0
_SIGNATURE_LENGTH = 64
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
)
_BROKEN = ("socket closed", "connection reset", "broken pipe", "goaway", "recvmsg", "keepalive", "rst_stream")
"""Words of gRPC about a call whose connection ended."""

_UNKNOWN = "Request for unknown model: "
"""Words of the refusal of a server that has no such model or version."""

_STOPPING = "Server is stopping"
"""Words of the refusal of a server that ends."""


class PoolCalls:
    """The way to the servers of the other pools.

    ``file`` names them, and is followed. Raises ServerError if it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self.files = FollowedFiles("pools", [file], partial(read_pools, file), self._take)
        self._pools: Pools = self.files.first
        self._channels: dict[str, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def _take(self, pools: Pools) -> None:
        before, self._pools = self._pools, pools
        for pool in [each for each in self._channels if pools.servers.get(each) != before.servers.get(each)]:
            self._let_go(pool)

    def _let_go(self, pool: str) -> None:
        """Use another channel from now on; calls that have begun end on this one."""
        closing = asyncio.create_task(self._channels.pop(pool).close(grace=24 * 3600.0))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Break all calls off."""
        for channel in [*self._channels.values()]:
            await channel.close(grace=None)
        for closing in self._closing:
            closing.cancel()

    def has(self, model: str) -> bool:
        """True if a model belongs to another pool."""
        return not self._pools.has(model)

    def admission(self, model: str, version: str, *, streams: bool) -> PoolAdmission:
        """The admission of a call to a model of another pool."""
        return PoolAdmission(self, model, version, streams=streams)

    def channel(self, model: str) -> Any:
        """The channel to the servers that have a model. Raises InferenceError if there is none."""
        pool = self._pools.of(model)
        servers = self._pools.servers.get(pool, ())
        if not servers:
            raise InferenceError(f"pool '{pool}' has no server now: try again", ErrorCode.UNAVAILABLE)
        if pool not in self._channels:
            self._channels[pool] = grpc.aio.insecure_channel(_target(servers), options=_OPTIONS)
        return self._channels[pool]

    def headers(self, request: InferenceRequest | None = None) -> list[tuple[str, str]]:
        """The metadata of a call."""
        found = dict(self._pools.headers)
        if request is not None and request.trace is not None:
            context = request.trace.context
            found["traceparent"] = context.traceparent
            if context.state:
                found["tracestate"] = context.state
        return list(found.items())

    def failure(self, model: str, error: grpc.aio.AioRpcError) -> InferenceError:
        """The error of a call that failed: that of the server, or that of the way to it."""
        text, code = error.details() or "", CODES.get(error.code().name, ErrorCode.UNAVAILABLE)
        if code is ErrorCode.NOT_FOUND and text.startswith(_UNKNOWN):
            return not_ready(model, UnknownModelError(text))
        if code is ErrorCode.UNAVAILABLE:
            pool = self._pools.of(model)
            if "failed to connect" in text.lower():
                return InferenceError(f"no server of pool '{pool}' can take this call now: {text}", code)
            if any(words in text.lower() for words in _BROKEN):
                return InferenceError(
                    f"the connection with the server of pool '{pool}' that had this call broke: whether it has run is unknown",
                    code,
                )
        return InferenceError(text, code)

    async def is_ready(self, model: str, version: str) -> bool:
        """True if a server that has the model says that it is ready. Raises InferenceError."""
        ask = self.channel(model).unary_unary(f"{_SERVICE}ModelReady")
        try:
            answer = await ask(encode_question(model, version), metadata=self.headers(), timeout=_READY_S)
        except grpc.aio.AioRpcError as error:
            raise self.failure(model, error) from None
        return decode_readiness(answer)

    def parameters(
        self, request: InferenceRequest, executor: InstanceExecutor, execution: int, caller: str
    ) -> dict[str, ParameterValue]:
        """The parameters of a request that a model sends during an execution, with the path.

        Raises InferenceError if it would go to another pool in a circle, or too far.
        """
        path: list[str] = []
        running = executor.executions.find(execution)
        for pending in () if running is None else running.pending:
            path = max(path, self._path_of(pending.request), key=len)
        path = [*path, caller]
        if self.has(request.model_name):
            _check(path, request.model_name)
        text = json.dumps(path)
        return {**(request.parameters or {}), PATH: self._signature(text) + text}

    def _path_of(self, request: InferenceRequest) -> list[str]:
        """The path in the parameters of a request; none if a client has sent something else."""
        given = str((request.parameters or {}).get(PATH, ""))
        signature, text = given[:_SIGNATURE_LENGTH], given[_SIGNATURE_LENGTH:]
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            return []
        path: list[str] = msgspec.json.decode(text)
        return path

    def _signature(self, path: str) -> str:
        return hmac.digest(json.dumps(dict(self._pools.headers)).encode(), path.encode(), "sha256").hex()


def _target(servers: Sequence[str]) -> str:
    """Addresses as gRPC reads them. Several must be numbers; a name may stand for several."""
    if len(servers) == 1:
        return servers[0]
    return f"{'ipv6' if servers[0].startswith('[') else 'ipv4'}:{','.join(servers)}"


def _check(path: Sequence[str], model: str) -> None:
    way = " -> ".join((*path, model))
    if model in path:
        raise InferenceError(
            f"models of several pools would wait for each other: {way}. Put them into one pool", ErrorCode.UNAVAILABLE
        )
    if len(path) >= MOST_WAITING:
        raise InferenceError(
            f"{len(path)} models wait for each other already, which is the limit between pools: {way}",
            ErrorCode.UNAVAILABLE,
        )


class PoolAdmission:
    """The admission of a call to a model of another pool."""

    has_is_ready = False
    is_decoupled = False
    runs_in: frozenset[Model] = frozenset()
    namespace = ""

    def __init__(self, calls: PoolCalls, name: str, version: str, *, streams: bool) -> None:
        self._calls = calls
        self._streams = streams
        self.name = self.model_name = self.full_name = name
        self.version = self.model_version = version

    async def is_ready(self) -> bool:
        """True: its server asks the model."""
        return True

    def allocate(self, _nbytes: int, _input_name: str) -> None:
        """None: the bytes need not lie in shared memory."""

    def release(self) -> None:
        """Nothing is held."""

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Send a request. Raises InferenceError."""
        if request.correlation_id:
            raise InferenceError(
                f"model '{self.name}' is in another pool, whose servers take turns: a sequence needs it in the caller's pool",
                ErrorCode.UNSUPPORTED,
            )
        self._calls.channel(self.name)  # is there a server?
        if request.trace is not None:
            on_response = request.trace.follow(request, self, on_response)
        return _Run(self._calls, request, on_response, streams=self._streams).pending


class _Run(RequestHolder):
    """The holder of a request that another server has."""

    def __init__(self, calls: PoolCalls, request: InferenceRequest, on_response: OnResponse, *, streams: bool) -> None:
        self._calls = calls
        self._flows = asyncio.Event()
        self._flows.set()
        self.pending = PendingRequest(request, on_response, self)
        self._task = asyncio.create_task(self._run(streams=streams))

    def cancel(self, pending: PendingRequest) -> None:
        """The other server hears of it."""
        self._task.cancel()

    def flow(self, pending: PendingRequest, *, paused: bool) -> None:
        """Read no more responses, or go on."""
        (self._flows.clear if paused else self._flows.set)()

    def is_running(self, pending: PendingRequest) -> bool:
        """True: it waits for nothing here."""
        return True

    async def _run(self, *, streams: bool) -> None:
        request, pending = self.pending.request, self.pending
        try:
            async for response in self._stream() if streams else self._one():
                self._pass_on(response)
                await self._flows.wait()
            if not pending.answered:
                raise InferenceError("the other server ended the stream without a last response")
        except asyncio.CancelledError:
            self._fail(InferenceError("the call was cancelled", ErrorCode.CANCELLED))
        except grpc.aio.AioRpcError as error:
            self._fail(self._calls.failure(request.model_name, error))
        except Exception as error:  # noqa: BLE001  the model waits for an answer in any case
            self._fail(
                error if isinstance(error, InferenceError) else InferenceError(f"the answer cannot be read: {error}")
            )

    def _fail(self, error: InferenceError) -> None:
        if not self.pending.answered:
            request = self.pending.request
            self._pass_on(InferenceResponse(request.model_name, request.model_version, request.id, error=error))

    def _pass_on(self, response: InferenceResponse) -> None:
        self.pending.answered = response.final
        self.pending.on_response(response)

    async def _message(self, *, streams: bool) -> bytes:
        request = self.pending.request
        large = sum(len(tensor.data or b"") for tensor in request.inputs) >= LARGE_COPY_BYTES
        if large:
            return await asyncio.to_thread(encode_request, request, streams=streams)
        return encode_request(request, streams=streams)

    async def _one(self) -> AsyncIterator[InferenceResponse]:
        message = await self._message(streams=False)
        try:
            answer = await self._call(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or _STOPPING not in (error.details() or ""):
                raise
            answer = await self._call(message)  # it has not run, and it is another server's turn
        yield decode_response(answer)

    def _call(self, message: bytes) -> Any:
        # The channel of now: another one may have been closed since the request came.
        request = self.pending.request
        call = self._calls.channel(request.model_name).unary_unary(f"{_SERVICE}ModelInfer")
        return call(message, metadata=self._calls.headers(request))

    async def _stream(self) -> AsyncIterator[InferenceResponse]:
        request, message = self.pending.request, await self._message(streams=True)
        call = self._calls.channel(request.model_name).stream_stream(f"{_SERVICE}ModelStreamInfer")
        answers = call(iter([message]), metadata=self._calls.headers(request))
        try:
            async for answer in answers:
                yield decode_stream_response(answer)
        finally:
            answers.cancel()


POOLS: Callable[[Path], OtherServers] = PoolCalls
