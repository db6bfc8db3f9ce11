"""The engine finds the version that answers a request, and queues the request there.

An admission is the path of one request to a version, from opening by name to submission. The rules that all front ends
share are here: the version that answers, its replacement while a body arrives, the memory that holds the bytes, and the
validation of the request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any

from pybackend.engine.admission import CLIENT, ClientAdmission, Route, Sender
from pybackend.engine.answers import AnswerCounts, RefusalCounts
from pybackend.engine.description import ModelDescription, instance_document, statistics_document
from pybackend.engine.figures import RepositoryFigures
from pybackend.engine.region_delivery import RegionDelivery
from pybackend.errors import ErrorCode, InferenceError, NotServingError
from pybackend.inference.pending import PendingRequest
from pybackend.inference.region import FindRegion
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Lease
from pybackend.inference.validation import Checked, validate_bytes_tensors, validate_header
from pybackend.ipc.arena import TensorArena
from pybackend.ipc.client_regions import ClientRegions
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.signature import ModelSignature
from pybackend.observability.tracing.tracer import Tracer
from pybackend.repository.repository import ModelRepository
from pybackend_wire.messages import INLINE_BYTES

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


# Looked up once: an enumeration's members are found by a function.
_READY, _CLOSED = ModelState.READY, EngineState.CLOSED


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
        self.find_region: FindRegion = self.regions.find
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
        asked = [model for model in self._catalogue.models() if model.health.has_is_ready and not model.is_shadow]
        verdicts = await asyncio.gather(*(self.is_model_ready(model) for model in asked))
        return all(verdicts)

    async def is_model_ready(self, model: Model) -> bool:
        """True if a model version accepts requests, all its instances are alive, and its ``is_ready`` agrees."""
        return not await model.health.not_ready_reason()

    async def is_ready_by_name(self, name: str, version: str = "") -> bool:
        """True if that version is ready, or any for ``""``, and False for an unknown model.

        See :meth:`is_model_ready`.
        """
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

    def distribute(
        self, model: Model, request: InferenceRequest, on_response: OnResponse, *, is_chosen: bool
    ) -> PendingRequest:
        """Queue a request that names no version where the rules of its model say; otherwise as :meth:`submit`.

        They have chosen ``model`` already (``is_chosen``), or may choose another version, for which the request is
        validated again.
        """
        entry = self._catalogue.entries.get(model.full_name)
        if entry is None or entry.traffic is None:
            return self.submit(model, request, on_response)
        pass_on = entry.traffic.submit if is_chosen else entry.traffic.redirect
        return pass_on(self.submit, model, request, on_response)


def _stopping(request_id: str) -> InferenceError:
    return InferenceError(
        f"[request id: {request_id or '<id_unknown>'}] Server is stopping, scheduler for model has stopped accepting new "
        "inference requests",
        ErrorCode.UNAVAILABLE,
    )


class ModelAdmission:
    """The admission to a version of a model of this engine."""

    __slots__ = ("_engine", "_leases", "_model", "_name", "_sender", "_version", "signature")

    def __init__(self, engine: InferenceEngine, model: Model, name: str, version: str, sender: Sender) -> None:
        self._engine = engine
        self._model = model
        self._name = name
        self._version = version
        self._sender = sender
        self._leases: list[Lease] = []
        self.signature: ModelSignature = model.signature

    @property
    def model_name(self) -> str:
        return self._model.name

    @property
    def full_name(self) -> str:
        return self._model.full_name

    @property
    def model_version(self) -> str:
        return self._model.version

    @property
    def model(self) -> Model:
        """For other parts of the server that run models; front ends do not need it."""
        return self._model

    @property
    def runs_in(self) -> frozenset[Model]:
        """The models whose instances serve its requests."""
        return self._model.runs_in

    @property
    def find_region(self) -> FindRegion:
        return self._engine.find_region

    @property
    def is_decoupled(self) -> bool:
        return self._model.config.decoupled

    @property
    def has_is_ready(self) -> bool:
        """True if the model has its own readiness check; see :meth:`is_ready`."""
        return self._model.health.has_is_ready

    async def is_ready(self) -> bool:
        """True if the version accepts requests, all its instances are alive, and its ``is_ready`` agrees."""
        return not await self._model.health.not_ready_reason()

    def renew(self) -> None:
        if self._model.state is not ModelState.READY:
            self._model = self._engine.find(self._name, self._version, self._sender)
            self.signature = self._model.signature

    @property
    def is_current(self) -> bool:
        return self._model.state is ModelState.READY

    @property
    def holds_memory(self) -> bool:
        return bool(self._leases)

    def shares_memory_with(self, other: ClientAdmission) -> bool:
        if not isinstance(other, ModelAdmission):
            return False
        own, others = self._model, other._model
        return own is others or self._engine.lacks_tensor_memory or not own.runs_in.isdisjoint(others.runs_in)

    def can_serve(self, place: object) -> bool:
        if not isinstance(place, TensorArena):
            return False
        return self._engine.lacks_tensor_memory or any(map(place.owns, self._leases))

    def allocate(self, nbytes: int, input_name: str, *, arriving: bool = False) -> Lease | None:
        """None if the tensor is small, or the version is being replaced."""
        if nbytes <= INLINE_BYTES or self._model.state is not ModelState.READY:
            return None
        lease = self._model.arena_of(input_name).lease(nbytes, arriving=arriving)
        self._leases.append(lease)
        return lease

    def route(self) -> Route | None:
        if self._name != self.full_name or not (self._version or self._model.is_newest):
            return None
        return ModelRoute(self._engine, self._model, follows_newest=not self._version).submit

    def submit(
        self, request: InferenceRequest, on_response: OnResponse, checked: Checked = Checked.NOTHING
    ) -> PendingRequest:
        request.is_inner = self._sender.is_inner
        try:
            if self._model.state is not _READY:
                self.renew()
                request.model_version = self._model.version
                request.leave()
                checked = Checked.NOTHING
            if checked is not Checked.ALL:
                if checked is Checked.NOTHING:
                    validate_header(request, self.signature)
                validate_bytes_tensors(request, self.signature)
            model = self._model
            if model.is_newest or self._version:
                pending = self._engine.submit(model, request, on_response)
            else:
                pending = self._engine.distribute(model, request, on_response, is_chosen=True)
        except BaseException:  # whatever the reason, the caller leaves the memory to this admission
            request.release()
            self.release()
            raise
        if self._leases:
            self._leases = []
        return pending

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()

    async def infer(
        self,
        request: InferenceRequest,
        departure: Callable[[], Coroutine[None, None, None]] | None = None,
        checked: Checked = Checked.NOTHING,
    ) -> InferenceResponse:
        """Submit and wait for the answer, which the caller releases; for tests, tools and slow front ends.

        A sender that does not want the answer any more lets ``departure`` return, which cancels the request.
        """
        answer: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()

        def on_response(response: InferenceResponse) -> None:
            if answer.done():
                response.release()  # the waiter was cancelled in the loop turn in which the answer arrived
            else:
                answer.set_result(response)

        pending = self.submit(request, on_response, checked)
        leaving = None if departure is None else asyncio.create_task(departure())
        if leaving is not None:
            leaving.add_done_callback(lambda _leaving: pending.cancel())
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.cancelled():
                pending.cancel()
            else:
                answer.result().release()  # it arrived in the same turn
            raise
        finally:
            if leaving is not None:
                leaving.cancel()


class ModelRoute:
    """The shortcut to a version of a model of this engine."""

    __slots__ = ("_engine", "_follows_newest", "_model")

    def __init__(self, engine: InferenceEngine, model: Model, *, follows_newest: bool) -> None:
        self._engine = engine
        self._model = weakref.ref(model)
        self._follows_newest = follows_newest

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> PendingRequest | None:
        model = self._model()
        if model is None or model.state is not _READY or (self._follows_newest and not model.is_newest):
            return None
        try:
            return self._engine.submit(model, request, on_response)
        except BaseException:  # as in ModelAdmission.submit
            request.release()
            raise
