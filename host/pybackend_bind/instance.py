"""Runs bound functions: each instance is a thread of this process, and a stub towards the server beside it.

Nothing of a stub's that concerns a whole process happens here: no signals, no limits, no names, no end of the process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from pybackend_bind.exceptions import PyTritonUnrecoverableError, PyTritonValidationError, RequestError
from pybackend_bind.model_config import TritonModelConfig
from pybackend_bind.requests import RUNNING, Request
from pybackend_sdk.error import TritonError, TritonModelException, format_exception
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_stub.channel import HostChannel
from pybackend_stub.loop import StubLoop
from pybackend_stub.model_modules import ModelModules
from pybackend_stub.process import ThreadWatch
from pybackend_stub.runtimes import SharedRuntime, attach, detach, enter
from pybackend_wire.host_messages import Load, ModelToLoad
from pybackend_wire.stub_messages import Completed

log = logging.getLogger("pybackend_bind")

_AGAIN_S = 1.0
"""How long the log remembers an error: its traceback is written once in this time."""

_CLOSE_S = 1.0
"""How long the coroutines of an instance that ends may take to notice it."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
"""How long a stream waits before it looks again whether its slow client has read."""


@dataclass
class Bound:
    """A model, and the functions that are its instances."""

    config: TritonModelConfig
    functions: Sequence[Callable[..., Any]]
    strict: bool
    on_unrecoverable: Callable[[str], None]
    _logged_s: dict[str, float] = field(default_factory=dict)

    def given(self, requests: Sequence[InferenceRequest]) -> list[Request]:
        """The requests as functions get them."""
        return [
            Request(
                {tensor._name: tensor.as_numpy() for tensor in request._inputs},
                request._parameters,
                request._requested_output_names,
            )
            for request in requests
        ]

    def responses(self, requests: Sequence[InferenceRequest], results: Any) -> list[InferenceResponse]:
        """The responses to these requests. Raises PyTritonValidationError: the function has returned something else."""
        name, count = self.config.model_name, len(requests)
        if not isinstance(results, (list, tuple)):
            advice = ". A generator needs ModelConfig(decoupled=True)" if inspect.isgenerator(results) else ""
            raise PyTritonValidationError(
                f"the function of model '{name}' must return a list with a dictionary of arrays for each request, or have the decorator "
                f"@batch or @sample. It returned {type(results).__name__}{advice}"
            )
        if len(results) != count:
            raise PyTritonValidationError(
                f"the function of model '{name}' got {count} request{'s' if count > 1 else ''} and returned {len(results)} results"
            )
        return [
            InferenceResponse(self._tensors(result, request._requested_output_names))
            for request, result in zip(requests, results, strict=True)
        ]

    def _tensors(self, result: Any, wanted: Sequence[str]) -> list[Tensor]:
        name = self.config.model_name
        if not isinstance(result, (dict, Mapping)):
            raise PyTritonValidationError(
                f"the function of model '{name}' must return a dictionary of arrays for each request, and returned "
                f"{type(result).__name__}"
            )
        self._check_names(result, wanted)
        if self.strict:
            self._check(result)
        tensors = []
        for output, array in result.items():
            if not isinstance(output, str) or not isinstance(array, np.ndarray):
                raise PyTritonValidationError(
                    f"the function of model '{name}' returned {type(array).__name__} as output {output!r}: return NumPy arrays by name"
                )
            try:
                tensors.append(Tensor(output, np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array))
            except TritonModelException as error:
                raise PyTritonValidationError(f"output '{output}' of model '{name}': {error}") from None
        return tensors

    def _check_names(self, result: Mapping[Any, Any], wanted: Sequence[str]) -> None:
        """Compare names with those of ``bind``, and of what the client wants.

        Raises PyTritonValidationError: they differ.
        """
        name, outputs = self.config.model_name, [output.name for output in self.config.outputs]
        unknown = [output for output in result if output not in outputs]
        if unknown:
            raise PyTritonValidationError(
                f"the function of model '{name}' returned an output {unknown[0]!r}, which was not bound: {', '.join(map(str, outputs))}"
            )
        lacking = [output for output in outputs if output in wanted and output not in result]
        if lacking and not self.config.decoupled:
            raise PyTritonValidationError(
                f"the function of model '{name}' returned no output '{lacking[0]}', which was bound. It returned "
                f"{', '.join(map(repr, result)) or 'an empty dictionary'}"
            )

    def _check(self, result: Mapping[Any, Any]) -> None:
        """Compare types and shapes of outputs with those of ``bind``. Raises PyTritonValidationError: they differ."""
        name, outputs = self.config.model_name, {each.name: each for each in self.config.outputs}
        for output, array in result.items():
            if not isinstance(array, np.ndarray):
                continue
            bound = outputs[output]
            numpy = bound.datatype.numpy
            is_same = array.dtype.kind in "OSU" if bound.datatype.name == "BYTES" else array.dtype == numpy
            if not is_same:
                raise PyTritonValidationError(
                    f"output '{output}' of model '{name}' was bound as {np.dtype(bound.dtype)}, and the function returned {array.dtype}"
                )
            shape = array.shape[1:] if self.config.batching else array.shape
            if not bound.has_room_for(shape):
                raise PyTritonValidationError(
                    f"output '{output}' of model '{name}' was bound with shape {list(bound.shape)}, and the function returned "
                    f"{list(shape)}{' without the batch dimension' if self.config.batching else ''}"
                )

    def failure(self, error: BaseException) -> TritonError:
        """The error for clients. Tracebacks are for the log alone."""
        if isinstance(error, RequestError):
            return TritonError(error.message, error.code)
        name = self.config.model_name
        text = f"Failed to process the request(s) for model '{name}', message: {format_exception(error, _HIDDEN)}"
        now_s = time.monotonic()
        if now_s - self._logged_s.get(text, -_AGAIN_S) >= _AGAIN_S:
            if len(self._logged_s) > 100:
                self._logged_s.clear()
            self._logged_s[text] = now_s
            log.error("the function of model '%s' has failed", name, exc_info=error)
        if isinstance(error, PyTritonUnrecoverableError):
            self.on_unrecoverable(f"the function of model '{name}' cannot go on, and the server is stopped: {error}")
        return TritonError(text)


_HIDDEN = tuple(os.path.dirname(os.path.abspath(inspect.getfile(it))) for it in (Bound, StubLoop, format_exception))
"""Files whose frames do not concern those who write functions."""


class _Model:
    """A function as the stub sees it, a model that answers each request once."""

    def __init__(self, bound: Bound, function: Callable[..., Any]) -> None:
        self._bound = bound
        self._function = function

    def execute(self, requests: Sequence[InferenceRequest]) -> Any:
        bound = self._bound
        try:
            returned = self._function(bound.given(requests))
            if type(returned) is not list and inspect.iscoroutine(returned):
                return self._awaited(returned, requests)
            return bound.responses(requests, returned)
        except BaseException as error:  # noqa: BLE001  any exception answers the requests, even SystemExit
            return self._failed(error, len(requests))

    async def _awaited(self, coroutine: Any, requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
        try:
            return self._bound.responses(requests, await coroutine)
        except BaseException as error:  # noqa: BLE001  as in execute
            return self._failed(error, len(requests))

    def _failed(self, error: BaseException, count: int) -> list[InferenceResponse]:
        failure = self._bound.failure(error)
        return [InferenceResponse(error=failure) for _ in range(count)]


class _StreamingModel:
    """The same for a function that yields any number of results.

    While one stream waits, others of the instance go on.
    """

    def __init__(self, bound: Bound, function: Callable[..., Any]) -> None:
        self._bound = bound
        self._function = function

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:
        bound = self._bound
        streams = [stream for request in requests if (stream := request.get_response_sender()._stream) is not None]
        try:
            async with aclosing(self._results(bound.given(requests))) as every:
                async for results in every:
                    for stream, response in zip(streams, bound.responses(requests, results), strict=True):
                        pause_s = _FIRST_PAUSE_S
                        while not stream.closed and not stream.offer(response):
                            await asyncio.sleep(pause_s)
                            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    if all(stream.is_cancelled() for stream in streams):
                        break
            for stream in streams:
                stream.send(None, True)
        except BaseException as error:  # noqa: BLE001  as in execute of the other
            failure = bound.failure(error)
            for stream in streams:
                with suppress(TritonModelException):  # the server is gone
                    stream.fail(failure)

    async def _results(self, given: list[Request]) -> AsyncGenerator[Any]:
        returned = self._function(given)
        if inspect.isasyncgen(returned):
            async with aclosing(returned):
                async for results in returned:
                    yield results
        elif inspect.isgenerator(returned):
            try:
                for results in returned:
                    yield results
                    await asyncio.sleep(0)  # others may go on
            finally:
                returned.close()
        else:
            yield await returned if inspect.iscoroutine(returned) else returned


class _Loop(StubLoop):
    """The stub's main loop for one function, from HELLO to FINALIZED, in the calling thread."""

    def __init__(self, channel: HostChannel, nudges: int, bound: Bound, number: int) -> None:
        super().__init__(channel, nudges, None)
        self._bound = bound
        self._number = number
        self._runtime: SharedRuntime | None = None
        self._receiver.is_ended = True  # the end of this socket is not that of the process
        self._receiver.on_broken = lambda: None

    def _load(self, load: Load) -> bool:
        self._channel.use_codec(load.codec)
        model = ModelToLoad(*load.model)
        bound, functions = self._bound, self._bound.functions
        function = functions[self._number % len(functions)]
        runtime = SharedRuntime(model.version_directory, model.instance_name, {}, cast("ModelModules", None))
        self._runtime = runtime
        attach(runtime)
        enter(runtime)
        RUNNING.set(bound.config)
        kind = _StreamingModel if bound.config.decoupled else _Model
        self._instance.load(model, runtime, lambda _file, **_: cast("type", lambda: kind(bound, function)))
        self._channel.say(Completed(None))
        return True

    def _watch_thread(self) -> ThreadWatch:
        return ThreadWatch()  # which does not begin: the process is the program's

    def _expect_forks(self) -> None:
        """Do nothing: the connection with the server is what forks must let go of, see pybackend_bind.bind_server."""

    def _lose_host(self) -> int:
        return 0

    def close(self) -> None:
        """Remove everything that belongs to the instance."""
        if self._instance.executor is not None:
            self._instance.executor.close(_CLOSE_S)
        if self._runtime is not None:
            detach(self._runtime)
        self._attendant.end()
        self._memory.detach_all()
        with suppress(OSError):
            self._channel.close()


class Instances:
    """The instances that run in this process for one server."""

    def __init__(self) -> None:
        self._loops: set[_Loop] = set()

    def start(self, bound: Bound, number: int, descriptor: int, nudges: int) -> None:
        """Run an instance in a new thread. Raises RuntimeError: there can be no more threads."""
        name = f"{bound.config.model_name}_{number}"
        threading.Thread(target=self._run, args=(bound, number, descriptor, nudges), name=name, daemon=True).start()

    def _run(self, bound: Bound, number: int, descriptor: int, nudges: int) -> None:
        try:
            loop = _Loop(HostChannel(descriptor), nudges, bound, number)
        except OSError as error:  # the server starts another one
            log.error("an instance of model '%s' cannot start: %s", bound.config.model_name, error.strerror)  # noqa: TRY400
            return
        self._loops.add(loop)
        try:
            loop.run()
        except Exception:
            log.exception("an instance of model '%s' has ended", bound.config.model_name)
        finally:
            self._loops.discard(loop)
            loop.close()

    def leave_to_parent(self) -> None:
        """In a forked child of this process: the instances are the parent's."""
        for loop in tuple(self._loops):
            loop.on_fork()
        self._loops.clear()
