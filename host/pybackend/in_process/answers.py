"""The answers to a call as callers read them: response by response, or the only one at once."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Self

from pybackend.in_process.call import Answer, Call
from pybackend.in_process.crossing import Crossing
from pybackend.in_process.errors import InvalidArgumentError, TritonError, UnavailableError, error_of
from pybackend.in_process.tensor import Tensor


@dataclass
class InferenceResponse:
    """One response of a model."""

    model: Any  # the :class:`~pybackend.in_process.model.Model` that was asked
    request_id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)  # by name; empty if the model has only ended its answer
    error: TritonError | None = None  # if errors are not raised
    final: bool = True  # no response follows


class _Reader:
    """The common part of both kinds of iterators, which wait differently."""

    def __init__(self, model: Any, call: Call, crossing: Crossing, request_id: str, *, raises: bool) -> None:
        self._model = model
        self._call = call
        self._crossing = crossing
        self._request_id = request_id
        self._raises = raises
        self._is_over = False
        self._only: InferenceResponse | None = None
        self._error: TritonError | None = None

    def cancel(self) -> None:
        """Tell the model that nobody wants the answer; an error says so in its place unless it comes before."""
        self._crossing.send(self._call.cancel)

    def __del__(self) -> None:
        if not self._is_over:
            self._crossing.send(self._call.abandon)

    def _response(self, answer: Answer) -> InferenceResponse:
        self._is_over = answer.final
        error = None if answer.error is None else error_of(answer.error)
        if error is not None and self._raises:
            self._error = error
            raise error
        parameters = dict(answer.parameters)
        return InferenceResponse(self._model, self._request_id, parameters, answer.outputs, error, answer.final)

    def _note_only(self, response: InferenceResponse) -> None:
        """Note the first response; a second one may only end the answer."""
        if self._only is None:
            self._only = response
        elif response.outputs or response.error is not None:
            self.cancel()
            raise InvalidArgumentError(
                f"model '{self._model.name}' has sent several responses: read them with a for loop"
            )

    def _noted(self) -> InferenceResponse:
        if self._only is not None:
            return self._only
        raise self._error or InvalidArgumentError("the responses were read already: use those of the for loop")


class ResponseIterator(_Reader):
    """The responses to a call, in order. ``outputs`` and ``parameters`` are those of the only response."""

    def __init__(self, *about: Any, answers: SimpleQueue[Answer], raises: bool) -> None:
        super().__init__(*about, raises=raises)
        self._answers = answers
        self._pid = os.getpid()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> InferenceResponse:
        """Wait for the next response. Raises TritonError: the request has failed."""
        if self._is_over:
            raise StopIteration
        if self._pid != os.getpid():
            raise UnavailableError("the response belongs to the process from which this one was forked")
        try:
            answer = self._answers.get()
        except BaseException:  # Ctrl-C: nobody waits any more
            self.cancel()
            raise
        if self._call.is_paused and self._answers.empty():
            self._crossing.send(self._call.resume)
        return self._response(answer)

    @property
    def response(self) -> InferenceResponse:
        """The only response. Raises InvalidArgumentError: there are several."""
        for response in self:
            self._note_only(response)
        return self._noted()

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The outputs of the only response."""
        return self.response.outputs

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the only response."""
        return self.response.parameters


class Mailbox:
    """Answers on their way to a caller's event loop."""

    __slots__ = ("_answers", "_crossing", "_waiter")

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._answers: deque[Answer] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, answer: Answer) -> None:
        """Take an answer; called on the engine's loop."""
        self._answers.append(answer)
        self._crossing.send(self._wake)

    def backlog(self) -> int:
        """The number of answers that nobody has read."""
        return len(self._answers)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Answer:
        """Wait for the next answer, on the caller's loop."""
        if self._waiter is not None:
            raise InvalidArgumentError("another task reads these responses already")
        while not self._answers:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._answers.popleft()


class AsyncResponseIterator(_Reader):
    """The responses to a call, in order, without blocking the event loop; ``await`` it for the only response."""

    def __init__(self, *about: Any, answers: Mailbox, raises: bool) -> None:
        super().__init__(*about, raises=raises)
        self._answers = answers

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferenceResponse:
        """Wait for the next response. Raises TritonError: the request has failed."""
        if self._is_over:
            raise StopAsyncIteration
        try:
            answer = await self._answers.get()
        except asyncio.CancelledError:  # nobody waits any more
            self.cancel()
            raise
        if self._call.is_paused and not self._answers.backlog():
            self._crossing.send(self._call.resume)
        return self._response(answer)

    def __await__(self) -> Generator[Any, None, InferenceResponse]:
        """Wait for the only response. Raises InvalidArgumentError: there are several."""
        return self._await_only().__await__()

    async def _await_only(self) -> InferenceResponse:
        async for response in self:
            self._note_only(response)
        return self._noted()
