"""Models on other servers, as calls of models reach them: a row of :mod:`pybackend.plugins` is the way there."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

from pybackend.engine.admission import Admission
from pybackend.frontend.followed_files import FollowedFiles
from pybackend.inference.pending import PendingRequest
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.response import OnResponse
from pybackend.instance.executor import InstanceExecutor
from pybackend.model.model import Model


class CallAdmission(Admission, Protocol):
    """A call's admission to a model, on this server or on another one."""

    @property
    def has_is_ready(self) -> bool:
        """True if :meth:`is_ready` must be asked before a request."""
        ...

    @property
    def runs_in(self) -> AbstractSet[Model]:
        """The models of this server whose instances serve the call."""
        ...

    async def is_ready(self) -> bool: ...

    def submit(self, request: InferenceRequest, on_response: OnResponse, /) -> PendingRequest:
        """Send a request. Raises InferenceError."""
        ...


class OtherServers(Protocol):
    """The way to the models of other servers."""

    @property
    def files(self) -> FollowedFiles[Any]:
        """They name the servers, and are read again when they change."""
        ...

    def has(self, model: str) -> bool:
        """True if a model is on another server."""
        ...

    def admission(self, model: str, version: str, *, streams: bool) -> CallAdmission:
        """The admission of a call to such a model."""
        ...

    def parameters(
        self, request: InferenceRequest, executor: InstanceExecutor, execution: int, caller: str
    ) -> Mapping[str, ParameterValue]:
        """The parameters of a request that a model sends during an execution, with the path of models that wait for it.

        Raises InferenceError if it would go to another server in a circle, or too far.
        """
        ...

    async def is_ready(self, model: str, version: str) -> bool:
        """True if a server that has the model says that it is ready. Raises InferenceError."""
        ...

    async def close(self) -> None:
        """Break all calls off."""
        ...
