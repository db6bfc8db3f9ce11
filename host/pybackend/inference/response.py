"""A response: one element of the stream that answers a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pybackend.errors import InferenceError
from pybackend.inference.request import ParameterValue
from pybackend.inference.tensor import OutputTensor


class InferenceResponse:
    """One response. Its outputs may lie in shared memory: call :meth:`release` once they have been sent or copied.

    Attributes:
        model_name: the model that answered.
        model_version: decimal version that answered.
        id: the request's id.
        outputs: in the order in which the model produced them.
        parameters: response parameters, None if there are none.
        error: the failure, None for a result.
        final: True on the last element of the stream.
        empty: True if this only ends the stream: the model sent its final flag without a response.
    """

    __slots__ = ("_on_release", "empty", "error", "final", "id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        id: str = "",  # noqa: A002  the protocol's own word
        *,
        error: InferenceError | None = None,
        final: bool = True,
        empty: bool = False,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.outputs: list[OutputTensor] = []
        self.parameters: Mapping[str, ParameterValue] | None = None
        self.error = error
        self.final = final
        self.empty = empty
        self._on_release: Callable[[], None] | None = None

    def set_result(
        self,
        outputs: list[OutputTensor],
        parameters: Mapping[str, ParameterValue] | None,
        on_release: Callable[[], None] | None,
    ) -> None:
        """Set the result that a model produced."""
        self.outputs = outputs
        self.parameters = parameters
        self._on_release = on_release

    def release(self) -> None:
        """Release the outputs' memory. Further calls do nothing."""
        if self._on_release is not None:
            on_release, self._on_release = self._on_release, None
            self.outputs = []
            on_release()


OnResponse = Callable[[InferenceResponse], None]
"""Called on the event loop, never from inside ``submit``, once per response; the last one has ``final`` set."""
