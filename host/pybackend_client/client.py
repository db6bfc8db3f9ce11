"""The client: models by their names, called with arrays by the names of inputs; for threads, and for coroutines."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from pybackend_client.errors import (
    ClientError,
    ConnectionLostError,
    DeadlineError,
    UnavailableError,
    UnreachableError,
    WrongInputError,
)
from pybackend_client.http import AsyncHttpTransport, HttpCodec, HttpTransport, Server
from pybackend_client.retries import Attempts, Budget, Retries
from pybackend_client.tensors import Answer, Ask, Metadata, tensors_of
from pybackend_client.values import Tensor

_GRPC = ("grpc://", "grpcs://")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_DEFAULT_TIMEOUT_S = 60.0
_DEFAULT_CONNECTIONS = 32

_NOT_READY = (UnreachableError, ConnectionLostError, DeadlineError, UnavailableError)


_ModelT = TypeVar("_ModelT", bound="_Model")


class _Base(Generic[_ModelT]):
    """The common part of both clients: the way to a server, its models' metadata, and the rules for retries."""

    _model: type[_ModelT]
    _is_async = False

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        connections: int = _DEFAULT_CONNECTIONS,
        tls: Any = None,
    ) -> None:
        self.timeout_s = timeout_s
        self._budget = Budget(retries or Retries())
        self._known: dict[tuple[str, str], Metadata] = {}
        sent = dict(headers or {})
        if api_key is not None:
            sent["Authorization"] = f"Bearer {api_key}"
        _check_headers(sent)
        whole = url if "://" in url or url.startswith("unix:") else f"http://{url}"
        self.codec: Any = HttpCodec()
        self.transport: Any
        if whole.startswith(_GRPC):
            from pybackend_client import grpc_calls

            self.codec = grpc_calls.GrpcCodec()
            over_grpc = grpc_calls.AsyncGrpcTransport if self._is_async else grpc_calls.GrpcTransport
            self.transport = over_grpc(whole, sent, tls)
        else:
            if tls is not None and not isinstance(tls, ssl.SSLContext):
                raise TypeError(f"tls must be an ssl.SSLContext for HTTP, it is {type(tls).__name__}")
            over_http = AsyncHttpTransport if self._is_async else HttpTransport
            self.transport = over_http(Server(whole, sent, tls), connections)

    def __call__(
        self,
        model: str,
        version: str | int = "",
        *,
        outputs: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        request_id: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        repeatable: bool = False,
    ) -> _ModelT:
        """A model, and what its requests say beside their inputs.

        Requests that are ``repeatable`` may be executed twice.

        ``timeout_s`` is the time for a request; of a stream, for each response.
        """
        own = dict(headers or {})
        _check_headers(own)
        ask = Ask(model, str(version), tuple(outputs), dict(parameters or {}), request_id, own)
        return self._model(self, ask, timeout_s, repeatable=repeatable)

    def _ready(self, ask: Ask | None) -> Any:
        """The call that asks whether the server is ready, or one of its models."""
        return self.codec.ready(*("", "") if ask is None else (ask.model, ask.version))

    def _attempts(self, timeout_s: float, *, repeatable: bool) -> Attempts:
        return Attempts(self._budget, timeout_s, repeatable=repeatable)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raise ValueError if a header cannot be sent."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ValueError(f"the header '{name}' has a line break or another character that no header has")


class _Model:
    """The common part of the models of both clients: what their requests say beside tensors."""

    def __init__(self, client: Any, ask: Ask, timeout_s: float | None, *, repeatable: bool) -> None:
        self._client = client
        self._ask = ask
        self._timeout_s = client.timeout_s if timeout_s is None else timeout_s
        self._repeatable = repeatable

    @property
    def name(self) -> str:
        """The model's name."""
        return self._ask.model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ask.model!r})"


class Model(_Model):
    """A model of a :class:`Client`. Threads may share it."""

    def infer(self, **inputs: Any) -> Answer:
        """Send one request with these inputs, and return the outputs by name; raises :class:`ClientError`."""
        _, tensors = self._tensors(inputs)
        call = self._client.codec.infer(self._ask, tensors)
        answer: Answer = self._client.send(call, self._timeout_s, repeatable=self._repeatable)
        return answer

    def stream(self, **inputs: Any) -> Iterator[Answer]:
        """Send one request, and yield each response as it arrives. Leaving the loop cancels the request."""
        metadata, tensors = self._tensors(inputs)
        call = self._client.codec.stream(self._ask, tensors, metadata)
        return iter(self._client.transport.stream(call, self._timeout_s))

    def _tensors(self, inputs: Mapping[str, Any]) -> tuple[Metadata, list[Tensor]]:
        """The inputs of a request for the model as it is known, or as it is now."""
        metadata = self._client.described(self._ask, self._timeout_s)
        try:
            return metadata, tensors_of(inputs, metadata)
        except WrongInputError:
            metadata = self._client.described(self._ask, self._timeout_s, fresh=True)
            return metadata, tensors_of(inputs, metadata)

    def metadata(self) -> Metadata:
        """The inputs and outputs, as the server describes them now."""
        metadata: Metadata = self._client.described(self._ask, self._timeout_s, fresh=True)
        return metadata

    def configuration(self) -> dict[str, Any]:
        """The configuration as the server completed it, by the names of ``config.pbtxt``."""
        call = self._client.codec.configuration(self._ask.model, self._ask.version)
        return dict(self._client.send(call, self._timeout_s, repeatable=True))

    def is_ready(self) -> bool:
        """True if the model answers requests; False if not, or without an answer in time."""
        return bool(self._client.is_ready(self._ask, self._timeout_s))


class Client(_Base[Model]):
    """A server, for threads.

    The URL chooses the protocol: ``http://``, ``https://``, ``unix:/path``, ``grpc://``, ``grpcs://``.

    ``tls`` is an ``ssl.SSLContext`` for HTTP, and channel credentials of grpcio for gRPC; the default trusts the
    certificates that this machine trusts.
    """

    _model = Model

    def is_ready(self, ask: Ask | None = None, timeout_s: float | None = None) -> bool:
        """True if the server takes requests, or one of its models; False if not, or without an answer in time."""
        try:
            return bool(self.transport.send(self._ready(ask), self.timeout_s if timeout_s is None else timeout_s))
        except _NOT_READY:
            return False

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def described(self, ask: Ask, timeout_s: float, *, fresh: bool = False) -> Metadata:
        """The metadata of a model, remembered from the first time on."""
        key = (ask.model, ask.version)
        if fresh or key not in self._known:
            self._known[key] = self.send(self.codec.metadata(*key), timeout_s, repeatable=True)
        return self._known[key]

    def request(
        self, method: str, path: str, document: Any = None, *, timeout_s: float | None = None, repeatable: bool = False
    ) -> Any:
        """The JSON document at any path, such as ``/v2/repository/index``; None if the answer is empty.

        Over HTTP only.
        """
        call = self.codec.route(method, path, document)
        return self.send(call, self.timeout_s if timeout_s is None else timeout_s, repeatable=repeatable)

    def send(self, call: Any, timeout_s: float, *, repeatable: bool) -> Any:
        """The result of a call, sent again as the rules allow."""
        attempts = self._attempts(timeout_s, repeatable=repeatable)
        while True:
            try:
                return self.transport.send(call, attempts.left_s())
            except ClientError as error:
                pause = attempts.pause_after(error)
            time.sleep(pause)


class AsyncModel(_Model):
    """A model of an :class:`AsyncClient`."""

    async def infer(self, **inputs: Any) -> Answer:
        """Send one request with these inputs, and return the outputs by name; raises :class:`ClientError`."""
        _, tensors = await self._tensors(inputs)
        call = self._client.codec.infer(self._ask, tensors)
        answer: Answer = await self._client.send(call, self._timeout_s, repeatable=self._repeatable)
        return answer

    async def stream(self, **inputs: Any) -> AsyncIterator[Answer]:
        """Send one request, and yield each response as it arrives. Closing the generator cancels the request."""
        metadata, tensors = await self._tensors(inputs)
        call = self._client.codec.stream(self._ask, tensors, metadata)
        replies = self._client.transport.stream(call, self._timeout_s)
        try:
            async for answer in replies:
                yield answer
        finally:
            await replies.aclose()

    async def _tensors(self, inputs: Mapping[str, Any]) -> tuple[Metadata, list[Tensor]]:
        """The inputs of a request for the model as it is known, or as it is now."""
        metadata = await self._client.described(self._ask, self._timeout_s)
        try:
            return metadata, tensors_of(inputs, metadata)
        except WrongInputError:
            metadata = await self._client.described(self._ask, self._timeout_s, fresh=True)
            return metadata, tensors_of(inputs, metadata)

    async def metadata(self) -> Metadata:
        """The inputs and outputs, as the server describes them now."""
        metadata: Metadata = await self._client.described(self._ask, self._timeout_s, fresh=True)
        return metadata

    async def configuration(self) -> dict[str, Any]:
        """The configuration as the server completed it, by the names of ``config.pbtxt``."""
        call = self._client.codec.configuration(self._ask.model, self._ask.version)
        return dict(await self._client.send(call, self._timeout_s, repeatable=True))

    async def is_ready(self) -> bool:
        """True if the model answers requests; False if not, or without an answer in time."""
        return bool(await self._client.is_ready(self._ask, self._timeout_s))


class AsyncClient(_Base[AsyncModel]):
    """The same server for the coroutines of one event loop; arguments are those of :class:`Client`."""

    _model = AsyncModel
    _is_async = True

    async def is_ready(self, ask: Ask | None = None, timeout_s: float | None = None) -> bool:
        """True if the server takes requests, or one of its models; False if not, or without an answer in time."""
        try:
            return bool(await self.transport.send(self._ready(ask), self.timeout_s if timeout_s is None else timeout_s))
        except _NOT_READY:
            return False

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def described(self, ask: Ask, timeout_s: float, *, fresh: bool = False) -> Metadata:
        """The metadata of a model, remembered from the first time on."""
        key = (ask.model, ask.version)
        if fresh or key not in self._known:
            self._known[key] = await self.send(self.codec.metadata(*key), timeout_s, repeatable=True)
        return self._known[key]

    async def request(
        self, method: str, path: str, document: Any = None, *, timeout_s: float | None = None, repeatable: bool = False
    ) -> Any:
        """The JSON document at any path; arguments are those of :meth:`Client.request`."""
        call = self.codec.route(method, path, document)
        return await self.send(call, self.timeout_s if timeout_s is None else timeout_s, repeatable=repeatable)

    async def send(self, call: Any, timeout_s: float, *, repeatable: bool) -> Any:
        """The result of a call, sent again as the rules allow."""
        attempts = self._attempts(timeout_s, repeatable=repeatable)
        while True:
            try:
                return await self.transport.send(call, attempts.left_s())
            except ClientError as error:
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)
