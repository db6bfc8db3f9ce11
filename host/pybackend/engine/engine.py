"""The engine finds the version that answers a request, and queues the request there."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Any

from pybackend.engine.admission import CLIENT, ModelAdmission, Sender
from pybackend.engine.answers import AnswerCounts, RefusalCounts
from pybackend.engine.description import ModelDescription, instance_document, statistics_document
from pybackend.engine.figures import RepositoryFigures
from pybackend.errors import ErrorCode, InferenceError, NotServingError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.region import IN_REGION, RegionOutputs
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import LARGE_COPY_BYTES, OutputTensor
from pybackend.ipc.client_regions import ClientRegions
from pybackend.model.model import Model
from pybackend.observability.tracing.tracer import Tracer
from pybackend.repository.repository import ModelRepository
from pybackend_wire.host_messages import too_small_text

log = logging.getLogger(__name__)

_DOCUMENTS_AT_ONCE = 32
"""Statistics of this many versions take a millisecond or two until they are encoded."""


class EngineState(Enum):
    """The stage of the server's life."""

    STARTING = "starting"
    READY = "ready"
    EXITING = "exiting"
    """Not ready: clients leave, and what they still send is answered."""
    CLOSED = "closed"
    """Requests of clients are refused."""


_CLOSED = EngineState.CLOSED  # looked up once: an enumeration's members are found by a function


async def _nothing() -> None:
    """This process has them."""


class InferenceEngine:
    """Accepts requests for the models of a repository."""

    def __init__(
        self,
        repository: ModelRepository,
        *,
        server_id: str,
        strict_readiness: bool,
        regions: ClientRegions | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.tracer = Tracer() if tracer is None else tracer  # chooses the requests that are traced
        self.server_id = server_id  # the server's name
        self.state = EngineState.STARTING  # the stage of its life
        # counts of all answers, by the protocol of the sender
        self.answers = {"http": AnswerCounts("200"), "grpc": AnswerCounts("OK"), "model": AnswerCounts("OK")}
        # counts of the requests that no model accepted; front ends report them
        self.refusals = RefusalCounts(repository.catalogue.known_name)
        # returns once every process that accepts requests goes by the present settings of the log and of traces
        self.spread_settings: Callable[[], Awaitable[None]] = _nothing
        # whether clients can connect
        self.takes_clients: Callable[[], bool] = lambda: True
        self.regions = regions or ClientRegions(enabled=False)  # shared memory that clients have registered
        self.figures = RepositoryFigures(repository)  # of the models, for reports
        self.control = repository.control  # loads and unloads models on request
        self._repository = repository
        self._catalogue = repository.catalogue
        self._strict_readiness = strict_readiness
        self._queued = repository.host.queued_bytes

    @property
    def is_exiting(self) -> bool:
        """True once the server stops."""
        return self.state in {EngineState.EXITING, EngineState.CLOSED}

    @property
    def lacks_tensor_memory(self) -> bool:
        """True while there is no memory for the tensors of all models together."""
        budget = self._repository.host.tensor_budget
        return budget is not None and budget.is_short

    async def is_ready(self) -> bool:
        """True if clients should send requests: the server runs and, if readiness is strict, every model is ready."""
        if self.state is not EngineState.READY or not self.takes_clients():
            return False
        if not self._strict_readiness:
            return True
        if not self._catalogue.all_ready:
            return False
        asked = [
            model
            for model in self._catalogue.models()
            if model.has_is_ready and (model.traffic is None or not model.traffic.is_shadow(model))
        ]
        verdicts = await asyncio.gather(*(self.is_model_ready(model) for model in asked))
        return all(verdicts)

    async def is_model_ready(self, model: Model) -> bool:
        """True if a model version accepts requests, all its instances are alive, and its ``is_ready`` agrees."""
        return not await model.not_ready_reason()

    async def is_ready_by_name(self, name: str, version: str = "") -> bool:
        """True if that version is ready, or any for ``""``, and False for an unknown model; see :meth:`is_model_ready`."""
        for model in reversed(self._catalogue.known_versions(name, version)):
            if await self.is_model_ready(model):
                return True
        return False

    async def would_answer(self, name: str, version: str = "") -> bool:
        """True if a version is ready, or for ``""`` the one that stands for its model; see :meth:`is_model_ready`."""
        return await self.is_model_ready(self._catalogue.representative(name, version))

    def open(self, name: str, version: str = "", sender: Sender = CLIENT) -> ModelAdmission:
        """Open an admission to the version that would answer a request now.

        The version is decimal, or ``""`` for the newest ready one.
        """
        return ModelAdmission(self, self.find(name, version, sender), name, version, sender)

    def find(self, name: str, version: str, sender: Sender) -> Model:
        try:
            model = self._catalogue.find(name, version)
        except InferenceError as error:
            if self.state is EngineState.CLOSED:
                raise _stopping("") from None
            if isinstance(error, NotServingError):
                self._catalogue.hurry(name, version)
            raise
        if sender.refuse_stream is not None and model.config.decoupled:
            raise sender.refuse_stream(name)
        return model

    def serving(self, name: str) -> str:
        """The full name of a model, after a check that a version of it serves."""
        if not self._catalogue.ready_versions(name):
            raise InferenceError(f"Request for unknown model : {name}", ErrorCode.INVALID_ARG)
        return self._catalogue.names.known(name)

    @property
    def serving_names(self) -> list[str]:
        """The full names of the models of which a version serves, sorted."""
        return self._catalogue.serving_names

    def describe(self, name: str, version: str = "") -> ModelDescription:
        """Describe the version that would answer a request now."""
        model = self._catalogue.representative(name, version)
        versions = [model.version] if version else [each.version for each in self._catalogue.ready_versions(name)]
        return ModelDescription(
            versions=versions,
            platform=model.config.platform or model.config.backend,
            signature=model.signature,
            document=model.config.document,
            confinement=None if model.sandbox is None else model.sandbox.summary(),
            environment=model.environment,
        )

    async def stacks(self, name: str) -> list[dict[str, Any]]:
        """Where the processes of a model are, as plain values: one object per instance."""
        alive = self._repository.life_cycle.alive(self._catalogue.entry(name).full_name)
        instances = [(model.version, instance) for model in alive for instance in model.instances]
        stacks = await asyncio.gather(*(instance.monitor.stacks() for _, instance in instances))
        return [
            instance_document(version, instance, found)
            for (version, instance), found in zip(instances, stacks, strict=True)
        ]

    async def statistics(self, name: str = "", version: str = "") -> AsyncIterator[list[dict[str, Any]]]:
        """The statistics of ready versions, sorted by name and version, in parts; see :func:`statistics_document`.

        Requests run between the parts. An empty text stands for all models, or all ready versions.
        """
        models = self._catalogue.statistics_of(name, version)
        for start in range(0, len(models), _DOCUMENTS_AT_ONCE):
            yield [statistics_document(model) for model in models[start : start + _DOCUMENTS_AT_ONCE]]
            await asyncio.sleep(0)

    def submit(self, model: Model, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a request that was validated against ``model``; see :meth:`ClientAdmission.submit`.

        Raises InferenceError: the request is refused and remains the caller's. The request and its memory are the
        engine's if this returns. The callback runs on the event loop, never inside this call.
        """
        if self.state is _CLOSED and not request.is_inner:
            raise _stopping(request.id)
        if request.regions is not None:
            model.take_regions(request)
            if request.regions:
                on_response = RegionDelivery(request.regions, on_response).on_response
        if request.trace is not None:
            on_response = request.trace.follow(request, model, on_response)
        if self._queued is None or request.is_inner:
            return model.submit(request, on_response)
        nbytes = self._queued.weigh(request)
        pending = model.submit(request, on_response)
        self._queued.add(pending, nbytes)
        return pending


class RegionDelivery:
    """Passes the responses to one request on, in order, with every output in its place."""

    def __init__(self, regions: RegionOutputs, pass_on: OnResponse) -> None:
        self._regions = regions
        self._pass_on = pass_on
        self._waiting: deque[InferenceResponse] = deque()
        self._task: asyncio.Task[None] | None = None

    def on_response(self, response: InferenceResponse) -> None:
        """Write the outputs of a response, large ones in a thread."""
        left = self._left(response)
        if self._task is not None or any(len(output.data) >= LARGE_COPY_BYTES for output in left):
            self._waiting.append(response)
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._write_slowly())
            return
        self._write(response, left)
        self._finish(response)

    def _left(self, response: InferenceResponse) -> list[OutputTensor]:
        """The outputs that are not in their places yet."""
        return [output for output in response.outputs if output.name in self._regions and output.data is not IN_REGION]

    async def _write_slowly(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            response = self._waiting[0]
            await loop.run_in_executor(None, self._write, response, self._left(response))
            self._waiting.popleft()
            try:
                self._finish(response)
            except Exception:  # the other responses must go on
                log.exception("the receiver of a response of model '%s' failed", response.model_name)
                response.release()
        self._task = None

    def _write(self, response: InferenceResponse, outputs: list[OutputTensor]) -> None:
        """Write outputs; a failure turns the response into an error."""
        try:
            for output in outputs:
                part, nbytes = self._regions[output.name], len(output.data)
                if nbytes > part.nbytes:
                    raise InferenceError(too_small_text(output.name, part.nbytes, nbytes))
                part.region.write(part.offset, output.data)
                output.data = IN_REGION
        except InferenceError as error:
            response.error = error
        except Exception:  # the sender waits for an answer
            log.exception("outputs of model '%s' cannot be written to shared memory", response.model_name)
            response.error = InferenceError("internal error: see the server's log")

    def _finish(self, response: InferenceResponse) -> None:
        if response.error is not None:
            response.release()
        self._pass_on(response)


def _stopping(request_id: str) -> InferenceError:
    return InferenceError(
        f"[request id: {request_id or '<id_unknown>'}] Server is stopping, scheduler for model has stopped accepting new "
        "inference requests",
        ErrorCode.UNAVAILABLE,
    )
