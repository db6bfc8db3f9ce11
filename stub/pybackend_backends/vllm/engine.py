"""vLLM's asynchronous engine, on an event loop in a separate thread.

Many requests run at a time; the engine joins them. A receiver that reads slowly waits alone: the
engine joins its pieces of text meanwhile. A request that nobody waits for is cancelled, which frees its place in the
engine. If the engine dies, its requests are answered and the process ends: the server starts the instance again.
"""

import asyncio
import os
import threading
from importlib import import_module
from typing import Any, Callable, Dict, Optional, Set

from pybackend_backends.text_requests import FINAL, refuse
from pybackend_backends.vllm.generation import Generation
from pybackend_sdk.backend import offer
from pybackend_sdk.error import TritonError
from pybackend_sdk.logger import Logger
from pybackend_sdk.response_sender import InferenceResponseSender

_WATCH_S = 0.1
"""Between two looks at who still waits, and whether the engine lives."""

_SLOW_S = 0.02
"""Between two offers to a slow receiver."""

_LAST_ANSWERS_S = 10
"""For the requests of a dead engine to get their errors, and for its processes to end."""

MOST_REQUESTS = 1024
"""Most requests in one engine at a time. Others wait in the server's queue, where their priorities and time-outs act."""


class Engine:
    """Runs generations on the engine that ``start`` makes in the loop's thread."""

    def __init__(self, start: Callable[[], Any], model: str) -> None:
        self._model = model
        self._dead_error: Any = import_module("vllm.v1.engine.exceptions").EngineDeadError
        self._client_errors = _client_errors()
        self._senders: Dict[asyncio.Task[None], InferenceResponseSender] = {}
        self._places = threading.BoundedSemaphore(MOST_REQUESTS)
        self._count = 0
        self._dying = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()
        self._engine: Any = asyncio.run_coroutine_threadsafe(self._started(start), self._loop).result()
        self._watcher = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def submit(self, generation: Generation, sender: InferenceResponseSender) -> None:
        """Begin a request. Waits while the engine has as many as it may."""
        self._places.acquire()
        self._loop.call_soon_threadsafe(self._begin, generation, sender)

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the loop's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @staticmethod
    async def _started(start: Callable[[], Any]) -> Any:
        return start()

    def _begin(self, generation: Generation, sender: InferenceResponseSender) -> None:
        self._count += 1
        task = self._loop.create_task(self._generate(generation, sender, f"{self._model}-{self._count}"))
        self._senders[task] = sender
        task.add_done_callback(self._settle)

    async def _generate(self, generation: Generation, sender: InferenceResponseSender, number: str) -> None:
        outputs = self._engine.generate(generation.prompt, generation.sampling, number, lora_request=generation.adapter)
        try:
            async for output in outputs:
                response = generation.form.response(output)
                if output.finished:
                    sender.send(response, FINAL)
                    return
                while not offer(sender, response):  # noqa: ASYNC110  the receiver sends no event
                    await asyncio.sleep(_SLOW_S)
        finally:
            await outputs.aclose()  # leaving the loop early would let the engine go on
        raise RuntimeError("the engine ended the request without a result")

    def _settle(self, task: "asyncio.Task[None]") -> None:
        """Answer a request that did not end by its own last response."""
        sender = self._senders.pop(task)
        self._places.release()
        if task.cancelled():
            refuse(sender, "The request was cancelled while its text was generated.", TritonError.CANCELLED)
            return
        error = task.exception()
        if error is None:
            return
        if isinstance(error, self._dead_error):
            self._die()
            refuse(sender, self._obituary(), TritonError.UNAVAILABLE)
        elif isinstance(error, self._client_errors):
            refuse(sender, f"vLLM refuses the request: {error}")
        else:
            cause = error.__cause__ or error  # vLLM wraps unexpected errors
            refuse(sender, f"Error generating stream: {type(cause).__name__}: {cause}", TritonError.INTERNAL)

    def _obituary(self) -> str:
        return (
            f"model '{self._model}': the vLLM engine died while the request was running, and starts again: the server's "
            "log has the reason"
        )

    async def _watch(self) -> None:
        told: Set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(_WATCH_S)
            told &= self._senders.keys()
            for task, sender in list(self._senders.items()):
                if task not in told and sender.is_cancelled():
                    told.add(task)
                    task.cancel()
            if self._engine.errored:
                self._die()

    def _die(self) -> None:
        if not self._dying:
            self._dying = True
            Logger.log_error(
                f"model '{self._model}': the vLLM engine is dead, and this instance ends to start it again"
            )
            threading.Thread(target=self._exit, name="vllm-end", daemon=True).start()

    def _exit(self) -> None:
        """End the process, in a separate thread: a dead engine may block."""
        ended = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        try:
            ended.result(_LAST_ANSWERS_S)
        except Exception as error:  # noqa: BLE001  the process ends anyway
            Logger.log_error(
                f"model '{self._model}': the dead vLLM engine did not end in order: {type(error).__name__}: {error}"
            )
        os._exit(1)

    async def _end(self) -> None:
        self._watcher.cancel()
        for task in list(self._senders):
            task.cancel()
        await self._shut_down()

    async def _shut_down(self) -> None:
        while self._senders:
            await asyncio.wait(list(self._senders))
            await asyncio.sleep(0)  # their done callbacks run
        self._engine.shutdown()


def _client_errors() -> "tuple[Any, ...]":
    """The errors by which the installed vLLM tells that a request is wrong."""
    named: Optional[Any] = getattr(import_module("vllm.exceptions"), "VLLMClientError", None)
    return (ValueError,) if named is None else (named, ValueError)
