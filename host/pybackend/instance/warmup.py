"""The samples that an instance runs after ``initialize`` and before it takes requests."""

import asyncio
from collections.abc import Callable, Sequence

from pybackend.errors import InferenceError, ModelLoadError
from pybackend.inference.pending import PendingRequest, RequestHolder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor
from pybackend.instance.execution import Execution, Returned
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.stub_life import unhealthy
from pybackend.ipc.arena import ArenaLease
from pybackend.modelconfig.warmup import WarmupSample, WarmupTensor
from pybackend_wire.messages import INLINE_BYTES


class WarmupRun:
    """Has an instance execute samples: no scheduler, queue or statistics hears of them."""

    def __init__(self, instance: InstanceExecutor, model_name: str, lease: Callable[[int], ArenaLease]) -> None:
        self._instance = instance
        self._model_name = model_name
        self._lease = lease
        self._unanswered = 0
        self._returned = False
        self._errors: list[str] = []
        self._over = asyncio.Event()

    async def run(self, sample: WarmupSample) -> None:
        """Run one sample as often as it asks for. Raises ModelLoadError if a request failed, or the stub died."""
        for _ in range(sample.count):
            try:
                batch = self._batch(sample)
            except InferenceError as error:
                raise _failed(sample, [error.message]) from error
            self._unanswered, self._returned = len(batch), False
            self._over.clear()
            self._instance.execute(batch, self)
            await self._over.wait()
            if not self._instance.has_stub:
                self._errors.append(unhealthy(self._instance.name, self._instance.death_cause))
            if self._errors:
                raise _failed(sample, self._errors)

    def _batch(self, sample: WarmupSample) -> list[PendingRequest]:
        batch: list[PendingRequest] = []
        for _ in range(sample.batch_size):
            request = InferenceRequest(self._model_name)
            batch.append(PendingRequest(request, InferenceResponse.release, RequestHolder()))
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
        lease = self._lease(len(tensor.data))
        lease.view[:] = tensor.data
        return InputTensor(tensor.name, tensor.datatype, tensor.shape, lease.view, lease)

    # Reports of the instance

    def on_executed(self, returned: Sequence[Returned], now_ns: int) -> None:
        self._returned = True
        for execution, responses in returned:
            for pending, response in zip(execution.pending, responses, strict=True):
                if response is not None:
                    self._count(pending, response)
        self._end()

    def on_streamed(self, execution: Execution, pending: PendingRequest, response: InferenceResponse) -> None:
        self._count(pending, response)
        self._end()

    def on_rescheduled(self, again: list[PendingRequest]) -> None:
        """The model is not through with a sample."""
        self._instance.execute(again, self)

    def on_handed_back(self, waiting: list[PendingRequest]) -> None:
        """The stub was busy with something else."""
        self._instance.execute(waiting, self)

    def on_lost(
        self, instance: object, error: InferenceError, begun: list[PendingRequest], waiting: list[PendingRequest]
    ) -> None:
        for pending in (*begun, *waiting):
            pending.request.release()
        self._over.set()

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        for pending in batch:
            pending.request.release()
        self._errors.append(error.message)
        self._over.set()

    def _count(self, pending: PendingRequest, response: InferenceResponse) -> None:
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
