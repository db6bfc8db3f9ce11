"""Copies of requests for a version that answers nobody: its shadow runs with real traffic, and no client notices.

The copy of a request is prepared before the request is submitted, and sent afterwards. Inputs up to 64 KB are copied at
once. Larger ones lie in the memory of the version that answers: the copy shares their leases until their bytes are in
the shadow's memory. A copy for which there is no memory is dropped.
"""

from __future__ import annotations

import asyncio
import logging

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Buffer, InputTensor, copy_bytes
from pybackend.inference.validation import validate
from pybackend.ipc.arena import ArenaLease
from pybackend.model.model import Model, ModelState
from pybackend.model.statistics import ShadowFigures

log = logging.getLogger(__name__)

MOST_COPIES = 64
"""Copies that may be open at a time; further ones are dropped."""

MOST_TRANSFERS = 4
"""Copies of which large inputs may be on their way at a time."""

COPIED_AT_ONCE_BYTES = 64 * 1024
"""Inputs up to this size are copied before the request is submitted, which takes a few microseconds."""

MOST_COMPARED_BYTES = 64 * 1024
"""Answers whose outputs are larger together are not compared: keeping them would delay the client's answer."""

_WHOLE_PPM = 1_000_000

_Answer = tuple[tuple[str, str, tuple[int, ...], bytes], ...] | ErrorCode
"""Name, datatype, shape and bytes of each output; or the code of an error."""


class ShadowCopies:
    """Makes copies for one shadow, of this share of the requests."""

    def __init__(self, model: Model, percent: float) -> None:
        self.model = model  # the version that gets the copies
        self.open = 0  # copies that it has not answered yet
        self.transfers = 0  # copies of which large inputs are on their way
        self._share_ppm = round(percent * _WHOLE_PPM / 100)
        self._credit_ppm = 0
        self.tasks: set[asyncio.Task[None]] = set()
        if model.statistics.shadow is None:
            model.statistics.shadow = ShadowFigures()
        self.figures: ShadowFigures = model.statistics.shadow  # counters

    def copy_of(self, request: InferenceRequest) -> ShadowCopy | None:
        """A copy of a request that is about to be submitted; None if none is due, or it is dropped."""
        self._credit_ppm += self._share_ppm
        if self._credit_ppm < _WHOLE_PPM:
            return None
        self._credit_ppm -= _WHOLE_PPM
        if self._may_copy(request):
            return ShadowCopy(self, request)
        self.figures.dropped += 1
        return None

    def _may_copy(self, request: InferenceRequest) -> bool:
        if self.open >= MOST_COPIES or self.model.state is not ModelState.READY or self.model.config.decoupled:
            return False
        if request.regions is not None:
            return False  # tensors in clients' regions may change as soon as the client has its answer
        return self.transfers < MOST_TRANSFERS or not any(map(_is_large, request.inputs))


class ShadowCopy:
    """The copy of one request that is not submitted yet, and the comparison of both answers."""

    def __init__(self, shadow: ShadowCopies, original: InferenceRequest) -> None:
        self._shadow = shadow
        self._sources: dict[int, tuple[ArenaLease, Buffer]] = {}
        self._answers: list[_Answer | None] = []
        self._request = self._of(original)
        self._is_transfer = bool(self._sources)
        shadow.open += 1
        shadow.transfers += self._is_transfer

    def _of(self, original: InferenceRequest) -> InferenceRequest:
        request = InferenceRequest(
            original.model_name,
            self._shadow.model.version,
            original.id,
            requested_outputs=original.requested_outputs,
            parameters=original.parameters,
            correlation_id=original.correlation_id,
            flags=original.flags,
            priority=original.priority,
            timeout_us=original.timeout_us,
            is_inner=True,  # no client waits for it: queued bytes and the server's end do not count it
        )
        for place, tensor in enumerate(original.inputs):
            copy = InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape))
            request.inputs.append(copy)
            data = tensor.data
            assert data is not None
            if _is_large(tensor):
                lease = tensor.lease
                assert isinstance(lease, ArenaLease)
                lease.share()
                self._sources[place] = (lease, data)
            elif isinstance(data, bytes) or (tensor.lease is None and memoryview(data).readonly):
                copy.data = data
            else:
                copy.data = bytes(data)
        return request

    def send_soon(self) -> None:
        """Send it after the request itself has left for its process."""
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if not self._sources:
            self._submit()
            return
        task, tasks = asyncio.get_running_loop().create_task(self._transfer()), self._shadow.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _transfer(self) -> None:
        """Copy the large inputs to the shadow's memory, then submit."""
        request, model = self._request, self._shadow.model
        try:
            for place, (source, data) in list(self._sources.items()):
                tensor = request.inputs[place]
                lease = tensor.lease = model.arena_of(tensor.name).lease(len(data))
                tensor.data = lease.view
                await copy_bytes(lease.view, data)
                del self._sources[place]
                source.release()
        except InferenceError:
            self._drop()
            return
        except BaseException:  # cancelled, too: the copy holds memory of two models
            self._drop()
            raise
        self._end_transfer()
        self._submit()

    def _end_transfer(self) -> None:
        self._shadow.transfers -= self._is_transfer
        self._is_transfer = False

    def _submit(self) -> None:
        request, shadow = self._request, self._shadow
        try:
            if shadow.model.state is not ModelState.READY:
                self._drop()
                return
            validate(request, shadow.model.signature)
            shadow.model.submit(request, self._on_copy)
        except InferenceError as error:
            log.debug(
                "model '%s': a copy for shadow %s was refused: %s", request.model_name, shadow.model.version, error
            )
            self._drop()
        else:
            shadow.figures.sent += 1

    def _drop(self) -> None:
        self._shadow.figures.dropped += 1
        self.discard()

    def discard(self) -> None:
        """Give up a copy that was not sent."""
        shadow = self._shadow
        shadow.open -= 1
        self._end_transfer()
        sources, self._sources = self._sources, {}
        for lease, _ in sources.values():
            lease.release()
        self._request.release()

    def compared(self, on_response: OnResponse) -> OnResponse:
        """The sender's callback; it keeps the answer for the comparison too."""

        def on_original(response: InferenceResponse) -> None:
            if response.final:
                self._note(response)
            on_response(response)

        return on_original

    def _on_copy(self, response: InferenceResponse) -> None:
        if response.final:
            self._shadow.open -= 1
            self._note(response)
        response.release()

    def _note(self, response: InferenceResponse) -> None:
        """Keep the first of the two answers, and compare the second with it."""
        self._answers.append(_answer_of(response))
        if len(self._answers) == 2 and None not in self._answers:
            first, second = self._answers
            self._shadow.figures.compared += 1
            self._shadow.figures.differed += first != second


def _is_large(tensor: InputTensor) -> bool:
    return tensor.lease is not None and len(tensor.data or b"") > COPIED_AT_ONCE_BYTES


def _answer_of(response: InferenceResponse) -> _Answer | None:
    """The part of a response that is compared; None if it is too large, or the sender gave up."""
    error = response.error
    if error is not None:
        return None if error.code is ErrorCode.CANCELLED else error.code
    if sum(len(output.data) for output in response.outputs) > MOST_COMPARED_BYTES:
        return None
    outputs = sorted(response.outputs, key=lambda output: output.name)
    return tuple((output.name, output.datatype, tuple(output.shape), bytes(output.data)) for output in outputs)
