"""The answers to a call as callers read them: response by response, or the only one at once."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from html import escape
from queue import SimpleQueue
from typing import Any, Self

from pybackend.in_process.call import CopiedResponse, PendingCall
from pybackend.in_process.crossing import Crossing
from pybackend.in_process.errors import InternalError, InvalidArgumentError, TritonError, UnavailableError, error_of
from pybackend.in_process.memory import OutputTarget
from pybackend.in_process.tensor import Tensor


@dataclass(repr=False)
class InferenceResponse:
    """One response of a model."""

    model: Any  # the :class:`~pybackend.in_process.model.Model` that was asked
    request_id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)  # by name; empty if the model has only ended its answer
    error: TritonError | None = None  # if errors are not raised
    final: bool = True  # no response follows

    def __repr__(self) -> str:
        return f"InferenceResponse({', '.join([f'{name}: {text}' for name, text in self._rows()])})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in self._rows()]
        return f"<table>{''.join(rows)}</table>"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(name, repr(tensor)) for name, tensor in self.outputs.items()]
        if self.error is not None:
            rows.append(("error", f"{type(self.error).__name__}: {self.error}"))
        if self.parameters:
            rows.append(("parameters", repr(self.parameters)))
        return rows or [("outputs", "none")]


_END = CopiedResponse({}, None, None, final=True)
"""For other threads that wait for a response after the last one."""


class _Reader:
    """The common part of both kinds of iterators, which wait differently."""

    __slots__ = ("_call", "_error", "_is_over", "_model", "_only", "_place", "_raises")

    _READING = "not read: a `for` loop reads the responses, `.outputs` waits for the only one"

    def _begin(self, model: Any, call: PendingCall, place: OutputTarget | None, *, raises: bool) -> None:
        self._model = model
        self._call = call
        self._place = place  # for outputs; None leaves them where they are
        self._raises = raises
        self._is_over = False
        self._only: InferenceResponse | None = None
        self._error: TritonError | None = None
        call.crossing.send(call.begin)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._told()})"

    def _repr_html_(self) -> str:
        """The table of the only response once it was read; this reads nothing."""
        return f"<code>{escape(repr(self))}</code>" if self._only is None else self._only._repr_html_()

    def _told(self) -> str:
        if self._only is not None:
            return repr(self._only)
        if self._error is not None:
            return f"{type(self._error).__name__}: {self._error}"
        return "read" if self._is_over else self._READING

    def cancel(self) -> None:
        """Tell the model that nobody wants the answer; an error says so in its place unless it comes before."""
        self._call.crossing.send(self._call.cancel)

    def __del__(self) -> None:
        if not self._is_over:
            self._call.crossing.send(self._call.abandon)

    def _response(self, answer: CopiedResponse) -> InferenceResponse:
        if answer.final:  # never False again: another thread may have read the last one meanwhile
            self._is_over = True
        outputs, error = answer.outputs, None if answer.error is None else error_of(answer.error)
        if self._place is not None:
            try:
                outputs = {name: tensor.copied_to(self._place, name) for name, tensor in outputs.items()}
            except Exception as failure:  # noqa: BLE001  the allocator is the caller's code
                outputs, error = {}, InternalError(f"the allocator of memory for outputs has failed: {failure}")
        if error is not None and self._raises:
            self._error = error
            raise error
        parameters = dict(answer.parameters) if answer.parameters else {}
        return InferenceResponse(self._model, self._call.request_id, parameters, outputs, error, answer.final)

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

    __slots__ = ("_answers", "_pid")

    def __init__(
        self,
        model: Any,
        call: PendingCall,
        answers: SimpleQueue[CopiedResponse],
        place: OutputTarget | None,
        *,
        raises: bool,
    ) -> None:
        self._answers = answers
        self._pid = os.getpid()
        self._begin(model, call, place, raises=raises)

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
        if answer.final:
            was_over, self._is_over = self._is_over, True
            self._answers.put(_END)
            if was_over:
                raise StopIteration
        if self._call.is_paused and self._answers.empty():
            self._call.crossing.send(self._call.resume)
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

    __slots__ = ("_crossing", "_waiter", "waiting")

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._waiter: asyncio.Future[None] | None = None
        self.waiting: deque[CopiedResponse] = deque()  # the answers that nobody has read

    def deliver(self, answer: CopiedResponse) -> None:
        """Take an answer; called on the engine's loop."""
        self.waiting.append(answer)
        self._crossing.send(self._wake)

    def backlog(self) -> int:
        """The number of answers that nobody has read."""
        return len(self.waiting)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def arrival(self) -> Generator[Any, None, None]:
        """Wait, on the caller's loop, until there is an answer."""
        if self._waiter is not None:
            raise InvalidArgumentError("another task reads these responses already")
        while not self.waiting:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                yield from self._waiter
            finally:
                self._waiter = None


class _Awaited:
    """Makes a generator of awaited futures something to await."""

    def __init__(self, steps: Generator[Any, None, InferenceResponse]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, InferenceResponse]:
        return self._steps


class AsyncResponseIterator(_Reader):
    """The responses to a call, in order, without blocking the event loop; ``await`` it for the only response."""

    __slots__ = ("_answers",)

    _READING = "not read: `async for` reads the responses, `await` waits for the only one"

    def __init__(
        self, model: Any, call: PendingCall, answers: Mailbox, place: OutputTarget | None, *, raises: bool
    ) -> None:
        self._answers = answers
        self._begin(model, call, place, raises=raises)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InferenceResponse:
        """Wait for the next response. Raises TritonError: the request has failed."""
        if self._is_over:
            raise StopAsyncIteration
        return await _Awaited(self._next())

    def __await__(self) -> Generator[Any, None, InferenceResponse]:
        """Wait for the only response. Raises InvalidArgumentError: there are several."""
        while not self._is_over:
            self._note_only((yield from self._next()))
        return self._noted()

    def _next(self) -> Generator[Any, None, InferenceResponse]:
        answers = self._answers
        if not answers.waiting:
            try:
                yield from answers.arrival()
            except asyncio.CancelledError:  # nobody waits any more
                self.cancel()
                raise
        answer = answers.waiting.popleft()
        if self._call.is_paused and not answers.waiting:
            self._call.crossing.send(self._call.resume)
        return self._response(answer)
