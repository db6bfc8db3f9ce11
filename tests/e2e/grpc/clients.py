"""``tritonclient.grpc`` and ``tritonclient.grpc.aio`` behind one face, so that a test can ask the same of both."""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, Self

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import InferenceServerException

DEADLINE_S = 60

Answer = InferResult | InferenceServerException
"""What a stream brings."""


class Blocking:
    """The blocking client."""

    asks_for_empty_final = True

    def __init__(self, url: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(url)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self._client, method)(*arguments, **options)

    def start(self, model: str, inputs: list[InferInput], **options: Any) -> Future[InferResult]:
        """Send a request and return at once."""
        future: Future[InferResult] = Future()

        def done(result: InferResult, error: InferenceServerException | None) -> None:
            future.set_result(result) if error is None else future.set_exception(error)

        self._client.async_infer(model, inputs, done, **options)
        return future

    def stream(self, requests: list[dict[str, Any]], **options: Any) -> list[Answer]:
        """Send requests on one stream, close the client's half, and return all that comes until the server ends it."""
        answers: list[Answer] = []
        self._client.start_stream(lambda result, error: answers.append(result if error is None else error), **options)
        for request in requests:
            self._client.async_stream_infer(**request)
        self._client.stop_stream()
        return answers

    def close(self) -> None:
        self._client.close()


class Asyncio:
    """The asyncio client, on a loop in a thread of its own.

    Its streams have no ``enable_empty_final_response``, and raise the error of grpc that ends them.
    """

    asks_for_empty_final = False

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = self._run(self._make(url))

    async def _make(self, url: str) -> tritonclient.grpc.aio.InferenceServerClient:
        return tritonclient.grpc.aio.InferenceServerClient(url)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the client and wait for its result."""
        return self._run(getattr(self._client, method)(*arguments, **options))

    def start(self, model: str, inputs: list[InferInput], **options: Any) -> Future[InferResult]:
        """Send a request and return at once."""
        return asyncio.run_coroutine_threadsafe(self._client.infer(model, inputs, **options), self._loop)

    def stream(self, requests: list[dict[str, Any]], **options: Any) -> list[Answer]:
        """Send requests on one stream, close the client's half, and return all that comes until the server ends it."""

        async def each() -> Any:
            for request in requests:
                yield request

        answers: list[Answer] = []

        async def collect() -> None:
            try:
                async for result, error in self._client.stream_infer(each(), **options):
                    answers.append(result if error is None else error)
            except grpc.RpcError as error:
                answers.append(InferenceServerException(error.details(), str(error.code())))

        self._run(collect())
        return answers

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


Client = Blocking | Asyncio


def infer(client: Client, model: str, inputs: list[InferInput], **options: Any) -> InferResult:
    return client.call("infer", model, inputs, **options)


def tensor(name: str, array: np.ndarray, datatype: str = "FP32") -> InferInput:
    return InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


def classes(name: str, count: int) -> list[InferRequestedOutput]:
    return [InferRequestedOutput(name, class_count=count)]


def parameters(result: InferResult) -> dict[str, Any]:
    found = result.get_response().parameters
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.items()}


class Listener:
    """A stream of the blocking client that stays open, and what it brings."""

    def __init__(self, url: str) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(url)
        self._changed = threading.Condition()
        self._answers: list[Answer] = []
        self._client.start_stream(self._take)

    def _take(self, result: InferResult, error: InferenceServerException | None) -> None:
        with self._changed:
            self._answers.append(result if error is None else error)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def send(self, model: str, inputs: list[InferInput], **options: Any) -> None:
        self._client.async_stream_infer(model, inputs, **options)

    def take(self, count: int) -> list[Answer]:
        """The first so many answers."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._answers) >= count, DEADLINE_S), self._answers
            return self._answers[:count]
