"""One request on its way through a model and its responses as they arrive; the counterpart of a client's connection."""

import queue
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_sdk.testing.signature import Signature
from pybackend_wire.messages import RequestOptions


class Arrival(NamedTuple):
    """A response, the final flag, or both.

    Attributes:
        response: its outputs are copies made when it was sent; None for the flag alone.
        final: whether it is the last arrival.
        unknown: names of outputs that the configuration does not have.
        exception: the exception that the model raised instead of answering.
    """

    response: Optional[InferenceResponse]
    final: bool
    unknown: Sequence[str] = ()
    exception: Optional[BaseException] = None


class Exchange:
    """A request and its responses."""

    def __init__(
        self,
        signature: Signature,
        inputs: List[Tensor],
        requested: Tuple[str, ...],
        batch_size: int,
        options: RequestOptions,
    ) -> None:
        self.inputs = inputs
        """The tensors, until the request is sent; then views of what the model may change, if it is executed again."""
        self.places: Optional[List[Any]] = None
        """The tensors' places for the model's process, once they have been written there."""
        self.segment = 0
        """The segment that holds them."""
        self.requested = requested
        self.batch_size = batch_size
        self.options = options
        self.execution = 0
        """The number of its execution, 0 until it is sent."""
        self.cancelled = False
        self.ended = False
        """``execute`` was called and has returned, or its coroutine if the model answers once."""
        self.finished = False
        """The final flag was sent."""
        self.on_cancel: Callable[[], None] = lambda: None
        self.exception: Optional[BaseException] = None
        """The exception that ``execute`` raised."""
        self._signature = signature
        self._parents: Sequence[Exchange] = ()
        self._children: List[Exchange] = []
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()  # the garbage collector may put into it

    def answer(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Deliver what the model sent: a response, the final flag, or both."""
        unknown: Sequence[str] = ()
        exception = None
        if response is not None:
            if response.has_error():
                exception = self.exception
            outputs, specs = response._output_tensors, self._signature.outputs
            unknown = [tensor.name() for tensor in outputs if tensor.name() not in specs]
            response._output_tensors = [tensor for tensor in outputs if tensor.name() in specs]
            for tensor in response._output_tensors:
                tensor._shape = list(specs[tensor.name()].shape_for_client(tensor._shape))
        self._put(Arrival(response, final, unknown, exception))

    def fail(self, error: TritonError, exception: Optional[BaseException] = None) -> None:
        self._put(Arrival(InferenceResponse(error=error), final=True, exception=exception))

    def _put(self, arrival: Arrival) -> None:
        self.finished = self.finished or arrival.final
        self._arrivals.put(arrival)

    def receive(self, wait_s: float) -> Optional[Arrival]:
        try:
            return self._arrivals.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Stop waiting. BLS calls made for this request alone are cancelled with it."""
        self.cancelled = True
        self.on_cancel()
        for child in list(self._children):
            if all(parent.cancelled for parent in child._parents):
                child.cancel()

    def serve(self, parents: "Sequence[Exchange]") -> None:
        """Tie this BLS call to the requests that it serves: it is cancelled once all of these are."""
        self._parents = parents
        for parent in parents:
            parent._children.append(self)
        if parents and all(parent.cancelled for parent in parents):
            self.cancel()
