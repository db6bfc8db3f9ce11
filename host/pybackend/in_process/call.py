"""One request of a caller, on the engine's loop: from its tensors to the copies of its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from pybackend.engine.admission import Route, Sender
from pybackend.engine.engine import InferenceEngine, ModelAdmission
from pybackend.engine.response_stream import MOST_WAITING
from pybackend.errors import InferenceError
from pybackend.in_process.crossing import Crossing
from pybackend.in_process.tensor import Tensor
from pybackend.inference.pending import CANCELLED, RequestHandle
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, Buffer, InputTensor, copy_bytes
from pybackend.recurring import Recurring
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)

PROTOCOL = "in_process"
SENDER = Sender(PROTOCOL)


class CopiedResponse(Struct, eq=False):
    """A response with copies of its outputs, or its error."""

    outputs: dict[str, Tensor]
    parameters: Mapping[str, ParameterValue] | None
    error: InferenceError | None
    final: bool


Deliver = Callable[[CopiedResponse], object]
"""Takes an answer on the engine's loop, and passes it on to the thread or the event loop that waits for it."""


def nowhere(_answer: CopiedResponse) -> None:
    """For answers that nobody reads any more."""


_UNEXPECTED = InferenceError("internal error: see the server's log")

MOST_ROUTES = 256

Shape = tuple[str, str, Sequence[int]]
"""An input's name, datatype and shape."""

Kinds = tuple[tuple[str, str], ...]
"""The names and datatypes of inputs."""


Routes = Recurring[tuple[Shape, ...], tuple[Route, int]]
"""The ways to a model for requests like earlier ones, which were completely checked, and their batch sizes."""

Accepted = Recurring[Kinds, None]
"""The inputs of requests that were right: callers do not wait until one like them is checked."""


class PendingCall:
    """A call; its methods are steps for the engine's loop.

    Args:
        engine: serves the request.
        crossing: leads to its loop.
        request: its inputs may be memory of the caller's.
        routes: of requests to this model.
        accepted: inputs of requests to this model.
        deliver: takes the answers.
        backlog: the number of answers that nobody has read.
        copies: copies that run; the engine's loop waits for them at its end.
        on_taken: called once the caller's memory was read, and the request checked.
        rest: takes the answers once the caller reads no more from ``deliver``.
    """

    __slots__ = (
        "_accepted",
        "_admission",
        "_backlog",
        "_copies",
        "_copying",
        "_deliver",
        "_engine",
        "_is_cancelled",
        "_on_taken",
        "_pending",
        "_request",
        "_responses",
        "_rest",
        "_routes",
        "crossing",
        "is_paused",
        "is_refused",
    )

    def __init__(
        self,
        engine: InferenceEngine,
        crossing: Crossing,
        request: InferenceRequest,
        routes: Routes,
        accepted: Accepted,
        deliver: Deliver,
        backlog: Callable[[], int],
        copies: set[asyncio.Task[None]],
        on_taken: Callable[[], object] | None = None,
        rest: Deliver = nowhere,
    ) -> None:
        self._engine = engine
        self.crossing = crossing  # to the engine's loop
        self._request = request
        self._routes = routes
        self._accepted = accepted
        self._deliver = deliver
        self._backlog = backlog
        self._copies = copies
        self._on_taken = on_taken
        self._rest = rest
        self._admission: ModelAdmission | None = None
        self._pending: RequestHandle | None = None
        self._responses: deque[InferenceResponse] | None = None
        self._copying: asyncio.Task[None] | None = None
        self._is_cancelled = False
        self.is_paused = False  # the model waits for the reader
        self.is_refused = False  # the request is wrong: the only answer is the reason

    @property
    def request_id(self) -> str:
        """The caller's name for the request."""
        return self._request.id

    # Towards the engine

    def begin(self) -> None:
        """Send the request to its model."""
        try:
            request = self._request
            shapes = _shapes_if_small(request.inputs)
            if shapes is not None and not self._engine.tracer.active:
                known = self._routes.get(shapes)
                if known is not None:
                    route, request.batch_size = known
                    self._pending = route(request, self._on_response)
                    if self._pending is not None:
                        self._taken()
                        return
            self._admission = admission = self._engine.open(request.model_name, request.model_version, SENDER)
            if shapes is None and any(is_large(tensor) for tensor in request.inputs):
                self._copy(self._begin_slowly(admission))
                return
            if shapes is None:
                for tensor in request.inputs:
                    _lend(admission, tensor)
            self._submit(admission)
            new = admission.route()
            if shapes is not None and new is not None:
                self._routes.remember(shapes, (new, request.batch_size))
        except InferenceError as error:
            self._refuse(error)
        except Exception:  # the caller waits for an answer
            log.exception("a request for model '%s' failed", self._request.model_name)
            self._refuse(_UNEXPECTED.again())

    def _copy(self, work: Coroutine[Any, Any, None]) -> None:
        self._copying = task = asyncio.get_running_loop().create_task(work)
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def _begin_slowly(self, admission: ModelAdmission) -> None:
        """Copy large tensors in threads."""
        try:
            for tensor in self._request.inputs:
                data = _lend(admission, tensor)
                if data is not None:
                    await copy_bytes(memoryview(tensor.data), data)  # type: ignore[arg-type]  # it has memory now
            if self._is_cancelled:
                raise CANCELLED.again()
            self._submit(admission)
        except InferenceError as error:
            self._refuse(error)
        except Exception:  # the caller waits for an answer
            log.exception("a request for model '%s' failed", self._request.model_name)
            self._refuse(_UNEXPECTED.again())
        finally:
            self._copying = None

    def _submit(self, admission: ModelAdmission) -> None:
        request = self._request
        request.model_name, request.model_version = admission.model_name, admission.model_version
        tracer = self._engine.tracer
        if tracer.active and tracer.takes(admission.full_name):
            request.trace = tracer.begin(admission.full_name, "", sends=False)
        kinds = None if self._on_taken is None else kinds_of(request.inputs)
        self._pending = admission.submit(request, self._on_response)
        if kinds is not None:
            self._accepted.remember(kinds, None)
            self._taken()

    def _taken(self) -> None:
        if self._on_taken is not None:
            self._on_taken()
            self._on_taken = None

    def _refuse(self, error: InferenceError) -> None:
        self._engine.refusals.add_error(PROTOCOL, self._request.model_name, error)
        if self._admission is not None:
            self._admission.release()
        self.is_refused = True
        self._taken()
        self._pass(CopiedResponse({}, None, error, final=True))

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
        self._deliver, self._backlog = self._rest, int
        self.resume()

    # Back to the caller

    def _on_response(self, response: InferenceResponse) -> None:
        if self._responses is not None:
            self._responses.append(response)
            return
        outputs: dict[str, Tensor] = {}
        if response.error is None:
            for output in response.outputs:
                if len(output.data) >= LARGE_COPY_BYTES:
                    self._responses = deque([response])
                    self._copy(self._copy_slowly(self._responses))
                    return
                outputs.setdefault(output.name, Tensor.of_model(output.datatype, output.shape, bytearray(output.data)))
        answer = CopiedResponse(outputs, response.parameters, response.error, response.final)
        response.release()
        self._pass(answer)

    async def _copy_slowly(self, responses: deque[InferenceResponse]) -> None:
        """Copy large outputs in threads; the responses behind them wait."""
        while responses:
            response = responses.popleft()
            outputs: dict[str, Tensor] = {}
            error = response.error
            try:
                for output in () if error is not None else response.outputs:
                    copy = np.empty(len(output.data), np.uint8).data  # a bytearray would be zeroed first
                    await copy_bytes(copy, output.data)
                    outputs.setdefault(output.name, Tensor.of_model(output.datatype, output.shape, copy))
            except Exception:  # such as a lack of memory; the caller waits for an answer
                log.exception("a response of model '%s' could not be copied", self._request.model_name)
                outputs, error = {}, _UNEXPECTED.again()
            answer = CopiedResponse(outputs, response.parameters, error, response.final)
            response.release()
            self._pass(answer)
        self._responses = self._copying = None

    def _pass(self, answer: CopiedResponse) -> None:
        error = answer.error
        self._deliver(answer)
        if answer.final:
            self._pending = None
            answers = self._engine.answers[PROTOCOL]
            if error is None:
                answers.ok += 1
            else:
                answers.add(error.code.name)
        elif self._pending is not None and self._backlog() >= MOST_WAITING:
            self.is_paused = True
            self._pending.pause()
            if not self._backlog():  # the reader was faster, and saw no pause
                self.resume()


def is_large(tensor: InputTensor) -> bool:
    """Whether its bytes may be the caller's memory."""
    return tensor.data is not None and len(tensor.data) >= LARGE_COPY_BYTES


def _lend(admission: ModelAdmission, tensor: InputTensor) -> Buffer | None:
    """Give a tensor the model's memory, and fill that unless it is large.

    Returns the bytes that are still to be copied.
    """
    data = tensor.data
    assert data is not None
    if len(data) <= INLINE_BYTES:
        return None
    tensor.lease = admission.allocate(len(data), tensor.name)
    if tensor.lease is None and not is_large(tensor):
        return None
    tensor.data = memoryview(bytearray(len(data))) if tensor.lease is None else tensor.lease.view
    if len(data) >= LARGE_COPY_BYTES:
        return data
    tensor.data[:] = data
    return None


def kinds_of(tensors: Sequence[InputTensor]) -> Kinds:
    """The names and datatypes of inputs, in their order."""
    return tuple([(tensor.name, tensor.datatype) for tensor in tensors])


def _shapes_if_small(tensors: Sequence[InputTensor]) -> tuple[Shape, ...] | None:
    """The names, datatypes and shapes of tensors that all travel in messages.

    None if one does not, or has strings, to be checked.
    """
    shapes = []
    for tensor in tensors:
        data = tensor.data
        if data is None or len(data) > INLINE_BYTES or tensor.datatype == "BYTES":
            return None
        shapes.append((tensor.name, tensor.datatype, tensor.shape))
    return tuple(shapes)
