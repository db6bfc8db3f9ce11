"""The clients: one model, its inputs by position or name, single samples or batches.

They are thin: :mod:`pybackend_client` does the work. URLs with ``grpc://`` need grpcio, which the extra ``client``
installs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np

from pybackend_bind.client.auth import create_auth_headers
from pybackend_bind.client.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pybackend_bind.model_config import TritonModelConfig
from pybackend_client import (
    AsyncClient,
    AsyncModel,
    Client,
    ClientError,
    ConnectionLostError,
    DeadlineError,
    Model,
    ModelNotFoundError,
    UnreachableError,
    WrongInputError,
)

_INIT_S, _INFERENCE_S = 300.0, 60.0
_PORTS = {"http": 8000, "https": 8000, "grpc": 8001, "grpcs": 8001}
_ASK_AGAIN_S = 0.1

Arrays = dict[str, np.ndarray]


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (UnreachableError, DeadlineError, ConnectionLostError) as error:
        raise PyTritonClientTimeoutError(str(error)) from error
    except ModelNotFoundError as error:
        raise PyTritonClientModelUnavailableError(str(error)) from error
    except WrongInputError as error:
        raise PyTritonClientValueError(str(error)) from error
    except ClientError as error:
        raise PyTritonClientInferenceServerError(str(error)) from error


def _complete(url: str) -> str:
    """The URL with a protocol and a port."""
    if not isinstance(url, str):
        raise PyTritonClientInvalidUrlError(f"{url!r} is not the URL of a server")
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        port = 0
    if not port or not parts.hostname:
        raise PyTritonClientInvalidUrlError(
            f"'{url}' is not the URL of a server: write localhost, http://host:8000 or grpc://host:8001"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def _checked(more: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters and headers of a request. Raises PyTritonClientValueError: they are none."""
    for what, values in more.items():
        if values is not None and not isinstance(values, dict):
            raise PyTritonClientValueError(f"{what} is a dictionary, not {type(values).__name__}")
        for name, value in (values or {}).items():
            if not isinstance(name, str) or not isinstance(value, str | int | bool | float):
                raise PyTritonClientValueError(
                    f"{what} has {name!r}: {value!r}: names are strings, and values strings, numbers or bools"
                )
    headers = more.get("headers") or {}
    return {**more, "headers": {name: str(value) for name, value in headers.items()}}


class _Common:
    """The parts of all clients: where the model is, and what requests to it look like."""

    _streams = False

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
    ) -> None:
        self._url = _complete(url)
        if self._streams and not self._url.startswith("grpc"):
            raise PyTritonClientInvalidUrlError(f"streams need gRPC: write grpc://host:8001 instead of '{url}'")
        self._model_name = model_name
        self._model_version = model_version
        self._init_s = init_timeout_s or _INIT_S
        self._inference_s = inference_timeout_s or _INFERENCE_S
        self._config = model_config
        self._waits = ensure_model_is_ready
        self._is_closed = False
        self._access_token = access_token

    @classmethod
    def from_existing_client(cls, existing_client: _Common) -> Self:
        """Another client of the same model; what the first one knows of the model counts."""
        one = existing_client
        return cls(
            one._url,
            one._model_name,
            one._model_version,
            init_timeout_s=one._init_s,
            inference_timeout_s=one._inference_s,
            model_config=one._config,
            ensure_model_is_ready=one._waits,
            access_token=one._access_token,
        )

    @property
    def _headers(self) -> dict[str, str]:
        """The headers of all requests."""
        if self._access_token is None:
            return {}
        return create_auth_headers(self._access_token, urlsplit(self._url).scheme.removesuffix("s"))

    def _check_open(self) -> None:
        if self._is_closed:
            raise PyTritonClientClosedError("the client is closed: make another one")

    def _asked(self, client: Any, timeout_s: float | None, more: Mapping[str, Any]) -> Any:
        """The model, with what a request says beside its inputs."""
        self._check_open()
        try:
            return client(self._model_name, self._model_version or "", timeout_s=timeout_s, **_checked(more))
        except ValueError as error:
            raise PyTritonClientValueError(str(error)) from None

    def _inputs(
        self,
        config: TritonModelConfig,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        *,
        as_sample: bool,
    ) -> dict[str, Any]:
        """The inputs of a request by name; a sample becomes a batch of one."""
        if inputs and named:
            raise PyTritonClientValueError("pass inputs by position or by name, not both")
        if not inputs and not named:
            raise PyTritonClientValueError("pass at least one input")
        if len(inputs) > len(config.inputs):
            raise PyTritonClientValueError(
                f"model '{self._model_name}' has {len(config.inputs)} inputs, and got {len(inputs)}"
            )
        if config.decoupled is not self._streams:
            raise PyTritonClientInferenceServerError(
                f"model '{self._model_name}' answers {'with streams' if config.decoupled else 'each request once'}: use "
                f"{'DecoupledModelClient or AsyncioDecoupledModelClient' if config.decoupled else 'ModelClient or AsyncioModelClient'}"
            )
        if not as_sample and not config.batching:
            raise PyTritonClientModelDoesntSupportBatchingError(
                f"model '{self._model_name}' takes single samples only: use infer_sample"
            )
        arrays = named or {str(each.name): array for each, array in zip(config.inputs, inputs, strict=False)}
        if not as_sample or not config.batching:
            return arrays
        return {name: np.asarray(array)[np.newaxis] for name, array in arrays.items()}

    def _outputs(self, config: TritonModelConfig, answer: Mapping[str, np.ndarray], *, as_sample: bool) -> Arrays:
        if not as_sample or not config.batching:
            return dict(answer)
        for name, array in answer.items():
            if not array.ndim or not len(array):
                raise PyTritonClientInferenceServerError(
                    f"model '{self._model_name}' has answered without a sample in output '{name}', whose shape is {list(array.shape)}"
                )
        return {name: array[0] for name, array in answer.items()}

    def _late(self, timeout_s: float) -> PyTritonClientTimeoutError:
        return PyTritonClientTimeoutError(
            f"model '{self._model_name}' at {self._url} was not ready within {timeout_s:g} s"
        )


class ModelClient(_Common):
    """One model, for threads."""

    def __init__(
        self, url: str, model_name: str, model_version: str | None = None, *, lazy_init: bool = True, **settings: Any
    ) -> None:
        super().__init__(url, model_name, model_version, **settings)
        with _translated():
            self._client = Client(self._url, headers=self._headers, timeout_s=self._inference_s)
        if not lazy_init:
            _ = self.model_config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        self._client.close()

    def _model(self, *, timeout_s: float | None = None, **more: Any) -> Model:
        found: Model = self._asked(self._client, timeout_s, more)
        return found

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server takes requests. Raises PyTritonClientTimeoutError."""
        self._wait(lambda left_s: self._client.is_ready(timeout_s=left_s), timeout_s)

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model answers requests. Raises PyTritonClientTimeoutError."""
        self._wait(lambda left_s: self._model(timeout_s=left_s).is_ready(), timeout_s)

    def _wait(self, is_ready: Callable[[float], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with _translated():
            while not is_ready(max(_ASK_AGAIN_S, deadline_s - time.monotonic())):
                if time.monotonic() > deadline_s:
                    raise self._late(timeout_s)
                time.sleep(_ASK_AGAIN_S)

    @property
    def model_config(self) -> TritonModelConfig:
        """The model as the server describes it."""
        if self._config is None:
            if self._waits:
                self.wait_for_model(self._init_s)
            with _translated():
                self._config = TritonModelConfig.from_document(self._model().configuration())
        return self._config

    @property
    def is_batching_supported(self) -> bool:
        """True if requests may hold several samples."""
        return self.model_config.batching

    def infer_sample(
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> Any:
        """Send one sample; returns the outputs by name."""
        return self._infer(inputs, named_inputs, parameters, headers, as_sample=True)

    def infer_batch(
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> Any:
        """Send arrays whose first dimension counts samples; returns the outputs by name."""
        return self._infer(inputs, named_inputs, parameters, headers, as_sample=False)

    def _infer(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        parameters: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        *,
        as_sample: bool,
    ) -> Any:
        config = self.model_config
        arrays = self._inputs(config, inputs, named, as_sample=as_sample)
        with _translated():
            return self._outputs(
                config, self._model(parameters=parameters, headers=headers).infer(**arrays), as_sample=as_sample
            )


class DecoupledModelClient(ModelClient):
    """One model that answers with streams: its ``infer_sample`` and ``infer_batch`` return iterators."""

    _streams = True

    def _infer(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        parameters: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        *,
        as_sample: bool,
    ) -> Iterator[Arrays]:
        config = self.model_config
        arrays = self._inputs(config, inputs, named, as_sample=as_sample)
        return self._stream(config, self._model(parameters=parameters, headers=headers), arrays, as_sample=as_sample)

    def _stream(
        self, config: TritonModelConfig, model: Model, arrays: dict[str, Any], *, as_sample: bool
    ) -> Iterator[Arrays]:
        with _translated():
            for answer in model.stream(**arrays):
                yield self._outputs(config, answer, as_sample=as_sample)


class FuturesModelClient:
    """One model, whose answers come as futures of ``concurrent.futures``."""

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        max_workers: int | None = 128,
        max_queue_size: int | None = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
    ) -> None:
        for name, value in (("max_workers", max_workers), ("max_queue_size", max_queue_size)):
            if value is not None and value <= 0:
                raise PyTritonClientValueError(f"{name} is {value}: it must be 1 or more, or None for no limit")
        self._client = ModelClient(
            url, model_name, model_version, init_timeout_s=init_timeout_s, inference_timeout_s=inference_timeout_s
        )
        self._pool = ThreadPoolExecutor(max_workers or sys.maxsize, thread_name_prefix="pybackend-client")
        is_limited = max_workers is not None and max_queue_size is not None
        self._places = BoundedSemaphore((max_workers or 0) + (max_queue_size or 0) if is_limited else sys.maxsize)
        self._blocks = not non_blocking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, wait: bool = True) -> None:
        """Close the connections, after the answers of all requests if it is to ``wait``.

        Otherwise those that wait are cancelled.
        """
        self._pool.shutdown(wait=wait, cancel_futures=not wait)
        self._client.close()

    def wait_for_model(self, timeout_s: float) -> Future[None]:
        """A future that is done when the model answers requests."""
        return self._submit(self._client.wait_for_model, timeout_s)

    def model_config(self) -> Future[TritonModelConfig]:
        """The model as the server describes it."""
        return self._submit(lambda: self._client.model_config)

    def infer_sample(self, *inputs: Any, **named: Any) -> Future[Arrays]:
        """As that of :class:`ModelClient`."""
        return self._submit(self._client.infer_sample, *inputs, **named)

    def infer_batch(self, *inputs: Any, **named: Any) -> Future[Arrays]:
        """As that of :class:`ModelClient`."""
        return self._submit(self._client.infer_batch, *inputs, **named)

    def _submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        self._client._check_open()
        if not self._places.acquire(blocking=self._blocks):
            raise PyTritonClientQueueFullError(
                "the queue of requests is full: wait for answers, or raise max_queue_size"
            )
        try:
            future = self._pool.submit(function, *args, **kwargs)
        except RuntimeError:
            self._places.release()
            raise PyTritonClientClosedError("the client is closed: make another one") from None
        future.add_done_callback(lambda _: self._places.release())
        return future


class AsyncioModelClient(_Common):
    """One model, for the coroutines of one event loop."""

    def __init__(
        self, url: str, model_name: str, model_version: str | None = None, *, lazy_init: bool = True, **settings: Any
    ) -> None:
        super().__init__(url, model_name, model_version, **settings)
        self._is_lazy = lazy_init
        with _translated():
            self._client = AsyncClient(self._url, headers=self._headers, timeout_s=self._inference_s)

    async def __aenter__(self) -> Self:
        if not self._is_lazy:
            await self.model_config
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        await self._client.close()

    def _model(self, *, timeout_s: float | None = None, **more: Any) -> AsyncModel:
        found: AsyncModel = self._asked(self._client, timeout_s, more)
        return found

    async def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model answers requests. Raises PyTritonClientTimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        with _translated():
            while not await self._model(timeout_s=max(_ASK_AGAIN_S, deadline_s - time.monotonic())).is_ready():
                if time.monotonic() > deadline_s:
                    raise self._late(timeout_s)
                await asyncio.sleep(_ASK_AGAIN_S)

    @property
    def model_config(self) -> Awaitable[TritonModelConfig]:
        """The model as the server describes it; to be awaited."""
        return self._described()

    async def _described(self) -> TritonModelConfig:
        if self._config is None:
            if self._waits:
                await self.wait_for_model(self._init_s)
            with _translated():
                self._config = TritonModelConfig.from_document(await self._model().configuration())
        return self._config

    async def infer_sample(
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> Arrays:
        """Send one sample; returns the outputs by name."""
        return await self._once(inputs, named_inputs, parameters, headers, as_sample=True)

    async def infer_batch(
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> Arrays:
        """Send arrays whose first dimension counts samples; returns the outputs by name."""
        return await self._once(inputs, named_inputs, parameters, headers, as_sample=False)

    async def _once(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        parameters: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        *,
        as_sample: bool,
    ) -> Arrays:
        config = await self._described()
        arrays = self._inputs(config, inputs, named, as_sample=as_sample)
        with _translated():
            return self._outputs(
                config, await self._model(parameters=parameters, headers=headers).infer(**arrays), as_sample=as_sample
            )


class AsyncioDecoupledModelClient(AsyncioModelClient):
    """One model that answers with streams: ``async for`` over its ``infer_sample`` and ``infer_batch``."""

    _streams = True

    def infer_sample(  # type: ignore[override]
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> AsyncIterator[Arrays]:
        """Send one sample; yields the outputs of each response by name."""
        return self._every(inputs, named_inputs, parameters, headers, as_sample=True)

    def infer_batch(  # type: ignore[override]
        self,
        *inputs: Any,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        **named_inputs: Any,
    ) -> AsyncIterator[Arrays]:
        """Send arrays whose first dimension counts samples; yields the outputs of each response by name."""
        return self._every(inputs, named_inputs, parameters, headers, as_sample=False)

    async def _every(
        self,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        parameters: Mapping[str, Any] | None,
        headers: Mapping[str, Any] | None,
        *,
        as_sample: bool,
    ) -> AsyncIterator[Arrays]:
        config = await self._described()
        arrays = self._inputs(config, inputs, named, as_sample=as_sample)
        with _translated():
            async for answer in self._model(parameters=parameters, headers=headers).stream(**arrays):
                yield self._outputs(config, answer, as_sample=as_sample)
