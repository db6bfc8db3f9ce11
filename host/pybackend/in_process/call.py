"""One request of a caller, on the engine's loop: from its tensors to the copies of its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pybackend.engine.admission import Admission, Sender
from pybackend.engine.engine import InferenceEngine
from pybackend.engine.response_stream import MOST_WAITING
from pybackend.errors import InferenceError
from pybackend.in_process.tensor import Tensor, WireTensor
from pybackend.inference.pending import CANCELLED, PendingRequest
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, Buffer, InputTensor, copy_bytes
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)

PROTOCOL = "in_process"
SENDER = Sender(PROTOCOL)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with copies of its outputs, or its error."""

    outputs: dict[str, Tensor]
    parameters: Mapping[str, ParameterValue]
    error: InferenceError | None
    final: bool


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where answers go; both are called on the engine's loop."""

    deliver: Callable[[Answer], object]
    backlog: Callable[[], int]  # the number of answers that nobody has read


def _nowhere(_answer: Answer) -> None:
    """For answers that nobody reads any more."""


_NOBODY = Receiver(_nowhere, int)

_UNEXPECTED = InferenceError("internal error: see the server's log")


class Call:
    """A call; its methods are steps for the engine's loop. ``on_taken`` is called once its tensors were read."""

    __slots__ = (
        "_admission",
        "_copying",
        "_engine",
        "_is_cancelled",
        "_on_taken",
        "_pending",
        "_receiver",
        "_request",
        "_responses",
        "_tensors",
        "is_paused",
    )

    def __init__(
        self,
        engine: InferenceEngine,
        request: InferenceRequest,
        tensors: Sequence[WireTensor],
        receiver: Receiver,
        on_taken: Callable[[], object] | None = None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._tensors = tensors
        self._receiver = receiver
        self._on_taken = on_taken
        self._admission: Admission | None = None
        self._pending: PendingRequest | None = None
        self._responses: deque[InferenceResponse] = deque()
        self._copying: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self.is_paused = False  # the model waits for the reader

    # Towards the engine

    def begin(self) -> None:
        """Send the request to its model."""
        try:
            request = self._request
            self._admission = self._engine.open(request.model_name, request.model_version, SENDER)
            for tensor in self._tensors:
                if len(tensor.data) >= LARGE_COPY_BYTES:
                    self._copying = asyncio.get_running_loop().create_task(self._begin_slowly())
                    return
            request.inputs = [self._input(tensor) for tensor in self._tensors]
            self._submit()
        except InferenceError as error:
            self._refuse(error)
        except Exception:  # the caller waits for an answer
            log.exception("a request for model '%s' failed", self._request.model_name)
            self._refuse(_UNEXPECTED.again())

    def _input(self, tensor: WireTensor) -> InputTensor:
        name, datatype, shape, data = tensor
        taken = InputTensor(name, datatype, shape, data)
        if len(data) > INLINE_BYTES:
            assert self._admission is not None
            taken.lease = lease = self._admission.allocate(len(data), name)
            if lease is not None:
                taken.data = lease.view
                lease.view[:] = data
        return taken

    async def _begin_slowly(self) -> None:
        """Copy large tensors in threads."""
        admission, request = self._admission, self._request
        assert admission is not None
        try:
            for tensor in self._tensors:
                if len(tensor.data) < LARGE_COPY_BYTES:
                    request.inputs.append(self._input(tensor))
                    continue
                taken = InputTensor(tensor.name, tensor.datatype, tensor.shape)
                request.inputs.append(taken)
                taken.lease = admission.allocate(len(tensor.data), tensor.name)
                taken.data = memoryview(bytearray(len(tensor.data))) if taken.lease is None else taken.lease.view
                await copy_bytes(taken.data, tensor.data)
            if self._is_cancelled:
                raise CANCELLED.again()
            self._submit()
        except InferenceError as error:
            self._refuse(error)
        except Exception:  # the caller waits for an answer
            log.exception("a request for model '%s' failed", self._request.model_name)
            self._refuse(_UNEXPECTED.again())
        finally:
            self._copying = None

    def _submit(self) -> None:
        admission, request = self._admission, self._request
        assert admission is not None
        self._taken()
        request.model_name, request.model_version = admission.model_name, admission.model_version
        tracer = self._engine.tracer
        if tracer.active and tracer.takes(admission.full_name):
            request.trace = tracer.begin(admission.full_name, "", sends=False)
        self._pending = admission.submit(request, self._on_response)

    def _taken(self) -> None:
        self._tensors = ()
        if self._on_taken is not None:
            self._on_taken()
            self._on_taken = None

    def _refuse(self, error: InferenceError) -> None:
        self._engine.refusals.add_error(PROTOCOL, self._request.model_name, error)
        if self._admission is not None:
            self._admission.release()
        self._taken()
        self._deliver(Answer({}, {}, error, final=True))

    def cancel(self) -> None:
        """The caller does not want the answer."""
        self._is_cancelled = True
        if self._pending is not None:
            self._pending.cancel()

    def resume(self) -> None:
        """The caller has read what waited."""
        if self.is_paused and self._pending is not None:
            self.is_paused = False
            self._pending.resume()

    def abandon(self) -> None:
        """The caller reads no more answers; the model goes on."""
        self._receiver = _NOBODY
        self.resume()

    # Back to the caller

    def _on_response(self, response: InferenceResponse) -> None:
        if self._copying is not None or any(len(output.data) >= LARGE_COPY_BYTES for output in response.outputs):
            self._responses.append(response)
            if self._copying is None:
                self._copying = asyncio.get_running_loop().create_task(self._copy_slowly())
            return
        self._pass_on(response, [bytearray(output.data) for output in response.outputs])

    async def _copy_slowly(self) -> None:
        """Copy large outputs in threads; the responses behind them wait."""
        while self._responses:
            response = self._responses.popleft()
            copies: list[Any] = []
            for output in response.outputs:
                copies.append(np.empty(len(output.data), np.uint8).data)  # a bytearray would be zeroed first
                await copy_bytes(copies[-1], output.data)
            self._pass_on(response, copies)
        self._copying = None

    def _pass_on(self, response: InferenceResponse, copies: Sequence[Buffer]) -> None:
        error = response.error
        outputs: dict[str, Tensor] = {}
        if error is None:
            for output, copy in zip(response.outputs, copies, strict=True):
                outputs[output.name] = Tensor.of_model(output.datatype, output.shape, copy)
        answer = Answer(outputs, response.parameters or {}, error, response.final)
        response.release()
        self._deliver(answer)

    def _deliver(self, answer: Answer) -> None:
        receiver, error = self._receiver, answer.error
        receiver.deliver(answer)
        if answer.final:
            self._pending = None
            answers = self._engine.answers[PROTOCOL]
            if error is None:
                answers.ok += 1
            else:
                answers.add(error.code.name)
        elif self._pending is not None and receiver.backlog() >= MOST_WAITING:
            self.is_paused = True
            self._pending.pause()
            if not receiver.backlog():  # the reader was faster, and saw no pause
                self.resume()
