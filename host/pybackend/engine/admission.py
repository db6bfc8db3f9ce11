"""An admission: the path of one request to a model version, from opening by name to submission.

A front end knows bytes, its protocol and admissions. These interfaces hold for models here
(:mod:`pybackend.engine.engine`) and elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pybackend.errors import InferenceError
from pybackend.inference.pending import RequestHandle
from pybackend.inference.region import FindRegion
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import OnResponse
from pybackend.inference.tensor import Lease
from pybackend.inference.validation import Checked
from pybackend.modelconfig.signature import ModelSignature


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

    The front end never releases memory from :meth:`allocate`, nor any memory of the request after :meth:`submit`: if
    the request is refused, the admission releases it.
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
    def find_region(self) -> FindRegion:
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


Route = Callable[[InferenceRequest, OnResponse], RequestHandle | None]
"""A shortcut to a version, for requests that were completely checked against its signature: queues one as
:meth:`ClientAdmission.submit` does. It returns None if another version would answer, or none: the request needs a new
admission, and remains the caller's.

A front end keeps it between requests. It does not keep the version alive.
"""
