"""An admission: the path of one request to a model version, from opening by name to submission.

Used between a front end and a model; the interfaces hold for models elsewhere, too. A front end knows bytes, its protocol and admissions. The rules that all front
ends share are here: the version that answers, its replacement while a body arrives, the memory that holds the bytes,
and the validation of the request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import PendingRequest, RequestHandle
from pybackend.inference.region import RegionFinder
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, OnResponse
from pybackend.inference.tensor import Lease
from pybackend.inference.validation import Checked, validate_bytes_tensors, validate_header
from pybackend.ipc.arena import TensorArena
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.signature import ModelSignature
from pybackend_wire.messages import INLINE_BYTES

_READY = ModelState.READY  # looked up once: an enumeration's members are found by a function


class AdmissionOwner(Protocol):
    """The engine's interface for its admissions."""

    @property
    def regions(self) -> RegionFinder:
        """Shared memory that clients have registered."""

    @property
    def lacks_tensor_memory(self) -> bool:
        """True while there is no memory for the tensors of all models together."""

    def find(self, name: str, version: str, sender: Sender) -> Model:
        """The version that would answer a request now."""

    def submit(self, model: Model, request: InferenceRequest, on_response: OnResponse) -> PendingRequest:
        """Queue a validated request."""

    async def is_model_ready(self, model: Model) -> bool:
        """True if a version accepts requests, all its instances are alive, and its ``is_ready`` agrees."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The properties of the senders that a front end represents."""

    protocol: str = ""  # the protocol that they use, as shown in metrics and logs
    # a model sends the request while it executes another request. Such requests are served while the server
    # stops, and do not count towards the limit on clients' queued bytes.
    is_inner: bool = False
    # makes the error for decoupled models from the model's name; None if the sender accepts any number of responses
    refuse_stream: Callable[[str], InferenceError] | None = None


CLIENT = Sender()
"""A client that accepts any number of responses."""


class Admission(Protocol):
    """A request's admission to a model, used for one request by one front end.

    The front end never releases memory from :meth:`allocate`, nor any memory of the request after :meth:`submit`: if the
    request is refused, the admission releases it.
    """

    @property
    def model_name(self) -> str: ...

    @property
    def full_name(self) -> str:
        """The model's full name, which tells it apart from those of other namespaces."""
        ...

    @property
    def model_version(self) -> str: ...

    def allocate(self, nbytes: int, input_name: str, /) -> Lease | None:
        """Input memory for a tensor; None if the bytes should not lie in shared memory.

        Raises InferenceError: UNAVAILABLE when the model's limit is reached.
        """
        ...

    def submit(self, request: InferenceRequest, on_response: OnResponse, /) -> RequestHandle:
        """Send a request.

        Args:
            request: its inputs have their bytes. The caller gives up the request and its memory, even if this raises.
            on_response: called on the event loop, never from inside this call; the last response has ``final`` set.
        """
        ...

    def release(self) -> None:
        """Release the memory, because there will be no request. After :meth:`submit` this does nothing."""
        ...


class ClientAdmission(Admission, Protocol):
    """The admission of a client's request to a version, for the ports: here, or in a separate front end."""

    @property
    def signature(self) -> ModelSignature:
        """The version's inputs and outputs. Only :meth:`renew` changes it."""
        ...

    @property
    def regions(self) -> RegionFinder:
        """Shared memory that clients have registered."""
        ...

    @property
    def is_decoupled(self) -> bool:
        """True if a request may have any number of responses."""
        ...

    @property
    def is_current(self) -> bool:
        """False once the version was replaced; :meth:`submit` then uses its successor."""
        ...

    @property
    def holds_memory(self) -> bool:
        """True while the admission holds model memory from :meth:`allocate`."""
        ...

    def shares_memory_with(self, other: ClientAdmission, /) -> bool:
        """True if memory that one of them releases can serve the other."""
        ...

    def can_serve(self, place: object, /) -> bool:
        """True if memory that it releases can serve those who allocate there: in a model's arena, or a front end's pool."""
        ...

    def renew(self) -> None:
        """Switch to the version's successor if it was replaced; call this before using :attr:`signature`."""
        ...

    def allocate(self, nbytes: int, input_name: str, *, arriving: bool = False) -> Lease | None:
        """Input memory for a tensor whose bytes are about to arrive.

        If the bytes are ``arriving`` gradually, the lease counts only those reported through ``arrived``.
        """
        ...

    def route(self) -> Route | None:
        """The way to this version for further requests of the same kind.

        None if the name may soon mean another model, or if rules or a higher version decide about such requests.
        """
        ...

    def submit(
        self, request: InferenceRequest, on_response: OnResponse, checked: Checked = Checked.NOTHING
    ) -> RequestHandle:
        """Validate a request and queue it; ``checked`` is the validation against :attr:`signature` that was already done."""
        ...


class Route(Protocol):
    """A shortcut to a version, for requests that were completely checked against its signature.

    A front end keeps it between requests. It does not keep the version alive, and leads nowhere once another version
    would answer.
    """

    def submit(self, request: InferenceRequest, on_response: OnResponse, /) -> RequestHandle | None:
        """Queue a request; otherwise as :meth:`ClientAdmission.submit`.

        None if another version would answer, or none: the request needs a new admission. It remains the caller's.
        """
        ...


class ModelAdmission:
    """The admission to a version of a model of this engine."""

    __slots__ = ("_engine", "_leases", "_model", "_name", "_sender", "_version", "signature")

    def __init__(self, engine: AdmissionOwner, model: Model, name: str, version: str, sender: Sender) -> None:
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
    def regions(self) -> RegionFinder:
        return self._engine.regions

    @property
    def is_decoupled(self) -> bool:
        return self._model.config.decoupled

    @property
    def has_is_ready(self) -> bool:
        """True if the model has its own readiness check; see :meth:`is_ready`."""
        return self._model.has_is_ready

    async def is_ready(self) -> bool:
        """True if the version accepts requests, all its instances are alive, and its ``is_ready`` agrees."""
        return await self._engine.is_model_ready(self._model)

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
        lease = self._model.lease(nbytes, input_name, arriving=arriving)
        self._leases.append(lease)
        return lease

    def route(self) -> ModelRoute | None:
        if self._name != self.full_name or not (self._version or self._model.is_newest):
            return None
        return ModelRoute(self._engine, self._model, follows_newest=not self._version)

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
            if model.traffic is None or self._version:
                pending = self._engine.submit(model, request, on_response)
            else:
                pending = model.traffic.submit(self._engine.submit, model, request, on_response)
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
    """A shortcut to a version of a model of this engine."""

    __slots__ = ("_engine", "_follows_newest", "_model")

    def __init__(self, engine: AdmissionOwner, model: Model, *, follows_newest: bool) -> None:
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
