"""The samples that an instance runs after ``initialize`` and before it takes requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pybackend.errors import InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.instance.execution import Execution
from pybackend.instance.owner import InstanceOwner, LostInstance
from pybackend.instance.session import unhealthy
from pybackend.ipc.arena import ArenaLease
from pybackend.modelconfig.warmup import WarmupSample, WarmupTensor
from pybackend_wire.messages import INLINE_BYTES

Execute = Callable[[list[PendingRequest]], None]


class WarmupRun:
    """Stands in for the model while an instance runs samples: no scheduler, queue or statistics hears of them.

    Args:
        model: whose place this takes; its input memory is used.
        model_name: for requests.
        execute: of the instance.
    """

    def __init__(self, model: InstanceOwner, model_name: str, execute: Execute) -> None:
        self._model = model
        self._model_name = model_name
        self._execute = execute
        self._unanswered = 0
        self._returned = False
        self._errors: list[str] = []
        self._over = asyncio.Event()

    async def run(self, sample: WarmupSample) -> None:
        """Run one sample as often as it asks for.

        Raises:
            ModelLoadError: a request failed, or the stub died.
        """
        for _ in range(sample.count):
            try:
                batch = self._batch(sample)
            except InferenceError as error:
                raise _failed(sample, [error.message]) from error
            self._unanswered, self._returned = len(batch), False
            self._over.clear()
            self._execute(batch)
            await self._over.wait()
            if self._errors:
                raise _failed(sample, self._errors)

    def _batch(self, sample: WarmupSample) -> list[PendingRequest]:
        batch: list[PendingRequest] = []
        for _ in range(sample.batch_size):
            request = InferenceRequest(self._model_name)
            batch.append(PendingRequest(request, InferenceResponse.release, lambda _pending: None))
            try:
                request.inputs += (self._input(tensor) for tensor in sample.inputs)
            except InferenceError:
                for pending in batch:
                    pending.request.release()
                raise
        return batch

    def _input(self, tensor: WarmupTensor) -> InputTensor:
        if len(tensor.data) <= INLINE_BYTES:
            return InputTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)
        lease = self._model.lease(len(tensor.data))
        lease.view[:] = tensor.data
        return InputTensor(tensor.name, tensor.datatype, tensor.shape, lease.view, lease)

    # What the instance has to tell

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse | None]) -> None:
        """``execute`` has returned."""
        self._returned = True
        for pending, response in zip(execution.pending, responses, strict=True):
            if response is not None:
                self._take(pending, response)
        self._end()

    def on_response(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        """A sender has sent a response."""
        self._take(pending, response)
        self._end()

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model is not through with a sample."""
        self._execute(again)

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """The stub was busy with something else."""
        self._execute(waiting)

    def lease(self, nbytes: int) -> ArenaLease:
        """Input memory of the model, for what its own calls are answered with."""
        return self._model.lease(nbytes)

    def on_lost(self, instance: LostInstance, begun: list[PendingRequest], waiting: list[PendingRequest]) -> None:
        """The stub died."""
        for pending in (*begun, *waiting):
            pending.request.release()
        self._errors.append(unhealthy(instance.name, instance.death_cause))
        self._over.set()

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """The execution could not be sent."""
        for pending in batch:
            pending.request.release()
        self._errors.append(error.message)
        self._over.set()

    def on_available(self) -> None:
        """The model may want to know."""
        self._model.on_available()

    def _take(self, pending: PendingRequest, response: InferenceResponse) -> None:
        if response.error is not None:
            self._errors.append(response.error.message)
        if response.final:
            pending.answered = True
            self._unanswered -= 1
        response.release()

    def _end(self) -> None:
        if self._returned and not self._unanswered:
            self._over.set()


def _failed(sample: WarmupSample, errors: Sequence[str]) -> ModelLoadError:
    return ModelLoadError(f"failed to run warmup sample '{sample.name}': " + "".join(f"{error}; " for error in errors))
