"""The protocol over gRPC, by the package grpcio: calls as messages, and channels that carry them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pybackend.modelconfig.protobuf.messages import message_class
from pybackend_client.errors import ClientError, ConnectionLostError, DeadlineError, UnreachableError, refused
from pybackend_client.inference import array_of
from pybackend_client.tensors import Answer, Ask, Metadata
from pybackend_client.values import ModelTensor, Tensor
from pybackend_wire.dtypes import DATATYPES
from pybackend_wire.installation import install_command

_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def import_grpc() -> Any:
    """The package grpcio; raises ClientError if it is missing."""
    try:
        import grpc
        import grpc.aio
    except ImportError:
        raise ClientError(f"gRPC needs the package grpcio: {install_command('client')} installs it") from None
    return grpc


class GrpcCall(NamedTuple):
    """A call of a method, and how its answer is read."""

    method: str
    message: Any
    answer: str  # name of the message that answers
    read: Callable[[Any], Any]
    headers: Mapping[str, str] = {}


class GrpcCodec:
    """Makes calls."""

    def ready(self, model: str, version: str) -> GrpcCall:
        if not model:
            return GrpcCall(
                "ServerReady", _message("ServerReadyRequest"), "ServerReadyResponse", lambda reply: reply.ready
            )
        asked = _message("ModelReadyRequest", name=model, version=version)
        return GrpcCall("ModelReady", asked, "ModelReadyResponse", lambda reply: reply.ready)

    def metadata(self, model: str, version: str) -> GrpcCall:
        asked = _message("ModelMetadataRequest", name=model, version=version)
        return GrpcCall("ModelMetadata", asked, "ModelMetadataResponse", _metadata)

    def configuration(self, model: str, version: str) -> GrpcCall:
        asked = _message("ModelConfigRequest", name=model, version=version)
        return GrpcCall("ModelConfig", asked, "ModelConfigResponse", _configuration)

    def infer(self, ask: Ask, tensors: list[Tensor]) -> GrpcCall:
        return GrpcCall("ModelInfer", _infer_message(ask, tensors), "ModelInferResponse", _answer, ask.headers)

    def stream(self, ask: Ask, tensors: list[Tensor], _metadata: Metadata) -> GrpcCall:
        return GrpcCall(
            "ModelStreamInfer", _infer_message(ask, tensors), "ModelStreamInferResponse", _streamed, ask.headers
        )

    def route(self, _method: str, path: str, _document: Any) -> GrpcCall:
        raise ClientError(f"{path} is a route of HTTP: give the client a URL that begins with http://")


def _message(name: str, /, **fields: Any) -> Any:
    return message_class(f"inference.{name}")(**fields)


def _infer_message(ask: Ask, tensors: list[Tensor]) -> Any:
    message = _message("ModelInferRequest", model_name=ask.model, model_version=ask.version, id=ask.request_id)
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.data)
    for name in ask.outputs:
        message.outputs.add(name=name)
    for name, value in ask.parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value), "string_param")
        setattr(message.parameters[name], kind, value)
    return message


def _metadata(reply: Any) -> Metadata:
    def tensors(listed: Any) -> dict[str, ModelTensor]:
        return {each.name: ModelTensor(each.name, each.datatype, tuple(each.shape)) for each in listed}

    return Metadata(reply.name, tuple(reply.versions), tensors(reply.inputs), tensors(reply.outputs))


def _configuration(reply: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(reply.config, preserving_proto_field_name=True))


def _answer(reply: Any) -> Answer:
    arrays = (
        [array_of(data, each.datatype) for each, data in zip(reply.outputs, reply.raw_output_contents, strict=True)]
        if reply.raw_output_contents
        else [_array(each) for each in reply.outputs]
    )
    outputs: dict[str, np.ndarray] = {}
    for each, array in zip(reply.outputs, arrays, strict=True):
        outputs.setdefault(each.name, array.reshape(tuple(each.shape)))
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in reply.parameters.items()
    }
    return Answer(outputs, reply.model_version, reply.id, parameters)


def _array(tensor: Any) -> np.ndarray:
    """The flat array of a tensor whose values are no raw bytes."""
    values = [each for _, listed in tensor.contents.ListFields() for each in listed]
    return np.array(values, object if tensor.datatype == "BYTES" else DATATYPES[tensor.datatype].numpy)


def _read(call: GrpcCall, reply: Any) -> Any:
    """The result of a call; raises ClientError."""
    try:
        return call.read(reply)
    except (ValueError, KeyError, TypeError, AssertionError, OverflowError) as error:
        raise ClientError(f"the server's answer is not of the v2 protocol: {error}") from None


def _streamed(reply: Any) -> Answer:
    if reply.error_message:
        raise refused(reply.error_message, "INTERNAL")
    return _answer(reply.infer_response)


def _late(url: str, timeout_s: float) -> DeadlineError:
    return DeadlineError(f"{url} has not answered within {timeout_s:.3g} s")


def _failure(error: Any, url: str, timeout_s: float) -> ClientError:
    """The error for a call that has failed."""
    status, text = error.code().name, error.details() or ""
    if status == "DEADLINE_EXCEEDED":
        return _late(url, timeout_s)
    if status == "UNAVAILABLE" and "failed to connect" in text.lower():
        return UnreachableError(f"no server answers at {url}: {text}")
    if status == "UNAVAILABLE" and any(
        word in text.lower() for word in ("socket closed", "connection reset", "goaway")
    ):
        return ConnectionLostError(f"the connection to {url} ended before the answer: {text}")
    return refused(text, status)


class _Patience:
    """Cancels a call for threads when one of its responses is late: grpcio has no such limit.

    Its own thread watches.
    """

    def __init__(self, cancel: Callable[[], object], timeout_s: float) -> None:
        self.is_over = False
        self._cancel = cancel
        self._timeout_s = timeout_s
        self._until_s: float | None = None  # when the awaited response is late; None while none is awaited
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="pybackend-client-stream", daemon=True).start()

    def of(self, replies: Iterator[Any]) -> Iterator[Any]:
        """The responses, while each arrives in time."""
        while True:
            self._until_s = time.monotonic() + self._timeout_s
            reply = next(replies, None)
            self._until_s = None
            if reply is None:
                return
            yield reply

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _watch(self) -> None:
        # A response that is awaited from now on is not late before the next look.
        while not self._ended.wait(self._left_s()):
            if self._left_s() <= 0:
                self.is_over = True
                self._cancel()
                return

    def _left_s(self) -> float:
        until_s = self._until_s
        return self._timeout_s if until_s is None else until_s - time.monotonic()


class _Channel:
    """The common part of channels for threads and for coroutines."""

    def __init__(self, url: str, module: Any, headers: Mapping[str, str], credentials: Any) -> None:
        self._url = url
        self._grpc = import_grpc()
        scheme, _, target = url.partition("://")
        if not target:
            raise ValueError(f"'{url}' is not the URL of a server: write, for example, grpc://localhost:8001")
        self._headers = headers
        if scheme == "grpcs":
            credentials = credentials or self._grpc.ssl_channel_credentials()
            self._channel = module.secure_channel(target, credentials, options=_OPTIONS)
        else:
            self._channel = module.insecure_channel(target, options=_OPTIONS)
        self._made: dict[str, Any] = {}
        self._is_closed = False

    def _metadata(self, call: GrpcCall) -> tuple[tuple[str, str], ...]:
        return tuple({name.lower(): value for name, value in (*self._headers.items(), *call.headers.items())}.items())

    def _method(self, call: GrpcCall, *, streams: bool = False) -> Any:
        if self._is_closed:
            raise ClientError("the client is closed: make another one")
        method = self._made.get(call.method)
        if method is None:
            make = self._channel.stream_stream if streams else self._channel.unary_unary
            method = self._made[call.method] = make(
                _SERVICE + call.method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=message_class(f"inference.{call.answer}").FromString,
            )
        return method


class GrpcTransport(_Channel):
    """A channel for threads."""

    def __init__(self, url: str, headers: Mapping[str, str], credentials: Any) -> None:
        super().__init__(url, import_grpc(), headers, credentials)

    def close(self) -> None:
        self._is_closed = True
        self._channel.close()

    def send(self, call: GrpcCall, timeout_s: float) -> Any:
        """The result of a call; raises ClientError."""
        try:
            reply = self._method(call)(call.message, timeout=timeout_s, metadata=self._metadata(call))
        except self._grpc.RpcError as error:
            raise _failure(error, self._url, timeout_s) from None
        return _read(call, reply)

    def stream(self, call: GrpcCall, timeout_s: float) -> Iterator[Any]:
        """The results of a stream, one by one, each of which must arrive in time; its end cancels the call."""
        replies = self._method(call, streams=True)(iter([call.message]), metadata=self._metadata(call))
        patience = _Patience(replies.cancel, timeout_s)
        try:
            for reply in patience.of(replies):
                yield _read(call, reply)
        except self._grpc.RpcError as error:
            raise _late(self._url, timeout_s) if patience.is_over else _failure(error, self._url, timeout_s) from None
        finally:
            patience.end()
            replies.cancel()


class AsyncGrpcTransport(_Channel):
    """A channel for coroutines of one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], credentials: Any) -> None:
        super().__init__(url, import_grpc().aio, headers, credentials)

    async def close(self) -> None:
        self._is_closed = True
        await self._channel.close()

    async def send(self, call: GrpcCall, timeout_s: float) -> Any:
        """The result of a call; raises ClientError."""
        try:
            reply = await self._method(call)(call.message, timeout=timeout_s, metadata=self._metadata(call))
        except self._grpc.RpcError as error:
            raise _failure(error, self._url, timeout_s) from None
        return _read(call, reply)

    async def stream(self, call: GrpcCall, timeout_s: float) -> AsyncIterator[Any]:
        """The results of a stream, one by one, each of which must arrive in time; its end cancels the call."""
        replies = self._method(call, streams=True)(iter([call.message]), metadata=self._metadata(call))
        try:
            while True:
                async with asyncio.timeout(timeout_s):
                    reply = await replies.read()
                if reply is self._grpc.aio.EOF:
                    break
                yield _read(call, reply)
        except TimeoutError:
            raise _late(self._url, timeout_s) from None
        except self._grpc.RpcError as error:
            raise _failure(error, self._url, timeout_s) from None
        finally:
            replies.cancel()
