"""One version of one model: its configuration, instances, queue, memory and counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.inference.pending import CANCELLED, PendingRequest, failure
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.instance.model_instance import Execution, InstancePlan, InstanceState, ModelInstance
from pybackend.instance.session import StubSettings, unhealthy
from pybackend.instance.stub_process import StubLauncher
from pybackend.ipc import stub_messages as heard
from pybackend.ipc.arena import ArenaLease, TensorArena
from pybackend.model.output_check import output_error
from pybackend.model.statistics import FailureReason, ModelStatistics
from pybackend.modelconfig.instances import InstanceSpec, instances
from pybackend.modelconfig.loader import finish_config, planned_instances
from pybackend.modelconfig.schema import ModelConfig
from pybackend.modelconfig.signature import ModelSignature, signature_of
from pybackend.scheduler.default import DefaultScheduler
from pybackend_wire.messages import INLINE_BYTES

log = logging.getLogger(__name__)


class ModelState(Enum):
    """Where a version is in its life; the values are those of the repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True)
class ModelSource:
    """What a version is loaded from.

    Attributes:
        name: the model's name.
        version: its decimal version.
        directory: the model directory.
        config: read, not yet completed by the model.
        auto_complete: True if the model may complete it.
        memory_limit_bytes: most input memory of the model, and most output memory of each instance.
        gpu_count: GPUs of this machine.
    """

    name: str
    version: int
    directory: Path
    config: ModelConfig
    auto_complete: bool
    memory_limit_bytes: int
    gpu_count: int

    @property
    def version_directory(self) -> Path:
        """Where the model file lies."""
        return self.directory / str(self.version)

    @property
    def model_file(self) -> Path:
        """The file to import."""
        return self.version_directory / self.config.default_model_filename


class Model:
    """A version that is being loaded, serves, or is being unloaded."""

    def __init__(self, source: ModelSource, launcher: StubLauncher) -> None:
        self.name = source.name
        self.version = str(source.version)
        self.config = source.config
        self.signature: ModelSignature = signature_of(source.config)
        self.state = ModelState.LOADING
        self.reason = ""
        self.statistics = ModelStatistics()
        self._source = source
        self._launcher = launcher
        self._instances: list[ModelInstance] = []
        self._active: list[ModelInstance] = []
        self._arena = TensorArena(source.memory_limit_bytes, source.name)
        self._scheduler: DefaultScheduler | None = None
        self._open_requests = 0
        self._all_failed = False
        self._checks_outputs = False
        self._idle: asyncio.Event | None = None

    # Life

    async def load(self) -> None:
        """Start, complete and initialise the model; it is READY afterwards.

        Raises:
            ModelLoadError: with the reason, which :attr:`reason` shows from then on.
        """
        started_ns = time.monotonic_ns()
        try:
            await self._load()
        except (ModelLoadError, InferenceError) as error:
            await asyncio.gather(*(instance.stop(finalize_timeout_s=0) for instance in self._instances))
            self._instances.clear()
            failed = ModelLoadError(error.message, error.code)
            self.state, self.reason = ModelState.UNAVAILABLE, failed.reason()
            raise failed from error
        self.statistics.load_duration_ns = time.monotonic_ns() - started_ns
        self.state, self.reason = ModelState.READY, ""

    async def _load(self) -> None:
        source = self._source
        if not source.model_file.is_file():
            raise ModelLoadError(
                f"Failed to preinitialize Python stub: Python model file not found in '{source.model_file}'"
            )
        planned = planned_instances(source.config, source.gpu_count)
        name = planned[0].name if planned else f"{source.name}_0"
        first = ModelInstance(name, self.version, self._launcher, self)
        self._instances.append(first)
        config_json = source.config.to_json() if source.auto_complete else None
        completed = await first.load(self._settings(name), config_json)
        self.config = finish_config(source.config, completed, source.gpu_count)
        self.signature = signature_of(self.config)
        self._checks_outputs = self.config.parameters.get("VALIDATE_OUTPUTS") == "yes"
        for warning in self.config.warnings:
            log.warning("%s", warning)
        specs = instances(self.config)
        for spec in specs[1:]:
            self._instances.append(ModelInstance(spec.name, self.version, self._launcher, self))
        plans = [self._plan(spec) for spec in specs]
        outcomes = await asyncio.gather(
            *(instance.initialize(plan) for instance, plan in zip(self._instances, plans, strict=True)),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self._active = [instance for instance, spec in zip(self._instances, specs, strict=True) if not spec.passive]
        self._scheduler = DefaultScheduler(self._active)

    async def unload(self, drain_timeout_s: float | None, finalize_timeout_s: float | None) -> bool:
        """Answer what was taken, finalize all instances and free everything; True if nothing had to be cut short.

        Args:
            drain_timeout_s: how long requests may take that were taken before.
            finalize_timeout_s: how long ``finalize`` may take; both times count from the call.
        """
        began_s = time.monotonic()
        self.state = ModelState.UNLOADING
        drained = True
        try:
            async with asyncio.timeout(drain_timeout_s):
                await self._drained()
        except TimeoutError:
            drained = False
            self._reject_waiting()
        if finalize_timeout_s is not None:
            finalize_timeout_s = max(0.0, finalize_timeout_s - (time.monotonic() - began_s))
        ended = await asyncio.gather(*(instance.stop(finalize_timeout_s) for instance in self._instances))
        # What a killed stub was sent and had not begun waits for another one, which does not come.
        self._reject_waiting()
        self._instances.clear()
        self._arena.close()
        self.state, self.reason = ModelState.UNAVAILABLE, "unloaded"
        return drained and all(ended)

    async def _drained(self) -> None:
        if self._open_requests:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def _settings(self, instance_name: str) -> StubSettings:
        source = self._source
        return StubSettings(
            instance_name=instance_name,
            model_name=source.name,
            model_file=str(source.model_file),
            version_directory=str(source.version_directory),
            output_memory_limit_bytes=source.memory_limit_bytes,
        )

    def _plan(self, spec: InstanceSpec) -> InstancePlan:
        config = self.config
        return InstancePlan(
            settings=self._settings(spec.name),
            args={
                "model_config": config.to_json(),
                "model_instance_kind": spec.kind,
                "model_instance_name": spec.name,
                "model_instance_device_id": str(spec.device_id),
                "model_repository": str(self._source.directory),
                "model_version": self.version,
                "model_name": self.name,
            },
            output_names=tuple(self.signature.outputs),
            copy_inputs=config.parameters.get("INPUT_COPY") == "yes",
        )

    # Health and figures

    @property
    def is_ready(self) -> bool:
        """True if requests are taken and every instance is alive."""
        return self.state is ModelState.READY and all(
            instance.state is InstanceState.READY for instance in self._instances
        )

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return 0 if self._scheduler is None else len(self._scheduler)

    @property
    def instances(self) -> Sequence[ModelInstance]:
        """All instances, in configured order."""
        return self._instances

    @property
    def input_memory_bytes(self) -> int:
        """Shared memory that inputs of this model hold or keep warm."""
        return self._arena.total_bytes

    # Requests

    def lease(self, nbytes: int) -> ArenaLease:
        """Input memory for a tensor whose bytes are about to arrive.

        Raises:
            InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        return self._arena.lease(nbytes)

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request; it is answered through ``on_response``, never before this returns.

        Raises:
            InferenceError: the request cannot be taken; its memory is the caller's to release.
        """
        if self.state is not ModelState.READY or self._scheduler is None:
            raise not_ready(self.name, self.version)
        if self._all_failed:
            raise self._no_instance()
        for tensor in request.inputs:
            data = tensor.data
            if tensor.lease is None and len(data) > INLINE_BYTES:  # type: ignore[arg-type]  # bytes have arrived
                lease = self._arena.lease(len(data))  # type: ignore[arg-type]
                lease.view[:] = data  # type: ignore[assignment]
                tensor.lease, tensor.data = lease, lease.view
        if self.signature.has_reshape:
            for tensor in request.inputs:
                tensor.shape = self.signature.shape_for_model(self.signature.inputs[tensor.name], tensor.shape)
        pending = PendingRequest(request, on_response, self._cancel)
        request.queued_ns = time.monotonic_ns()
        self._open_requests += 1
        self._scheduler.enqueue(pending)
        return pending

    def on_executed(self, execution: Execution, responses: Sequence[InferenceResponse], result: heard.Result) -> None:
        """An instance has answered an execution."""
        statistics = self.statistics
        now_ns = time.monotonic_ns()
        sent_ns, began_ns = execution.sent_ns, result.began_ns
        start_ns, end_ns = result.infer_start_ns, result.infer_end_ns
        if not sent_ns <= began_ns <= start_ns <= end_ns <= now_ns:
            began_ns, start_ns, end_ns = sent_ns, sent_ns, now_ns  # a stub's word is not worth more than that
        executed = succeeded = queued_ns = 0
        for pending, response in zip(execution.pending, responses, strict=True):
            if self.signature.has_reshape:
                self._reshape_outputs(response)
            if self._checks_outputs and response.error is None:
                self._check_outputs(pending, response)
            if response.error is not None:
                statistics.failures[FailureReason.BACKEND] += 1
            else:
                request = pending.request
                executed += request.batch_size
                succeeded += 1
                queued_ns += request.queued_ns
            self._answer(pending, response)
        if succeeded:
            statistics.inference_count += executed
            statistics.execution_count += 1
            statistics.success_count += succeeded
            statistics.success_ns += now_ns * succeeded - queued_ns
            statistics.queue_ns += began_ns * succeeded - queued_ns
            statistics.compute_input_ns += (start_ns - began_ns) * succeeded
            statistics.compute_infer_ns += (end_ns - start_ns) * succeeded
            statistics.compute_output_ns += (now_ns - end_ns) * succeeded
        assert self._scheduler is not None
        self._scheduler.dispatch()

    def on_lost(self, instance: ModelInstance, begun: list[PendingRequest], waiting: list[PendingRequest]) -> None:
        """A stub died: what it had begun fails (running it again could do its work twice), the rest waits on."""
        error = InferenceError(unhealthy(instance.name, instance.death_cause))
        self._fail(begun, error, FailureReason.BACKEND)
        if self._scheduler is not None:
            self._scheduler.requeue(waiting)
            self._scheduler.dispatch()

    def on_refused(self, batch: Sequence[PendingRequest], error: InferenceError) -> None:
        """An execution could not be sent: its requests are answered."""
        self._fail(batch, error, FailureReason.REJECTED)

    def _fail(self, batch: Sequence[PendingRequest], error: InferenceError, reason: FailureReason) -> None:
        for pending in batch:
            self.statistics.failures[reason] += 1
            pending.request.release()
            self._answer(pending, failure(pending.request, self.version, error))

    def on_available(self) -> None:
        """An instance came back, or could not be brought back."""
        if self._scheduler is None:
            return
        self._all_failed = all(instance.state is InstanceState.FAILED for instance in self._active)
        if self._all_failed:
            self._reject(self._no_instance())
        else:
            self._scheduler.dispatch()

    def trim(self, now_ns: int) -> None:
        """Give memory back that lay unused; called about once a second."""
        dropped: list[int] = []
        self._arena.trim(now_ns, dropped.append)
        for instance in self._instances:
            instance.trim(dropped, now_ns)

    def _reshape_outputs(self, response: InferenceResponse) -> None:
        for output in response.outputs:
            tensor = self.signature.outputs.get(output.name)
            if tensor is not None:
                output.shape = self.signature.shape_for_client(tensor, output.shape)

    def _check_outputs(self, pending: PendingRequest, response: InferenceResponse) -> None:
        response.error = output_error(response.outputs, self.signature, pending.request.batch_size)
        if response.error is not None:
            response.release()

    def _answer(self, pending: PendingRequest, response: InferenceResponse) -> None:
        self._open_requests -= 1
        pending.answered = True
        try:
            pending.on_response(response)
        except Exception:  # one receiver's fault must not cost the others their answers
            log.exception("the receiver of a response of model '%s' failed", self.name)
            response.release()
        if self._open_requests == 0 and self._idle is not None:
            self._idle.set()

    def _cancel(self, pending: PendingRequest) -> None:
        """Drop a request that waits; its sender is answered on the loop's next turn, as for every request."""
        assert self._scheduler is not None
        self._scheduler.remove(pending)
        pending.answered = True
        self.statistics.failures[FailureReason.CANCELED] += 1
        pending.request.release()
        response = failure(pending.request, self.version, CANCELLED)
        asyncio.get_running_loop().call_soon(self._answer, pending, response)

    def _no_instance(self) -> InferenceError:
        cause = self._active[0].death_cause
        return InferenceError(
            f"model '{self.name}' has no instance that can serve: its process could not be restarted. {cause}",
            ErrorCode.UNAVAILABLE,
        )

    def _reject_waiting(self) -> None:
        what = f"the request to model '{self.name}' was still waiting when the server stopped"
        self._reject(InferenceError(what, ErrorCode.UNAVAILABLE))

    def _reject(self, error: InferenceError) -> None:
        if self._scheduler is not None:
            self.on_refused(self._scheduler.take_all(), error)


def not_ready(name: str, version: str) -> InferenceError:
    """The error for a version that is there but does not serve now."""
    return InferenceError(
        f"Request for unknown model: '{name}' version {version} is not at ready state", ErrorCode.UNAVAILABLE
    )
