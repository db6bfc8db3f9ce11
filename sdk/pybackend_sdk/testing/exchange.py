"""One request on its way through a model and its responses as they arrive; the counterpart of a client's connection."""

import queue
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.execution import prune
from pybackend_sdk.parameters import Parameters
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_sdk.testing.inputs import wire_bytes
from pybackend_sdk.testing.signature import Signature


class Arrival(NamedTuple):
    """A response, the final flag, or both.

    Attributes:
        response: its outputs are copies made when it was sent; None for the flag alone.
        final: whether it is the last arrival.
        dropped: names of outputs that the request did not want.
        exception: the exception that the model raised instead of answering.
    """

    response: Optional[InferenceResponse]
    final: bool
    dropped: Sequence[str] = ()
    exception: Optional[BaseException] = None


class RequestOptions(NamedTuple):
    """Rarely used fields of a request; see :class:`~pybackend_sdk.request.InferenceRequest`."""

    request_id: str = ""
    correlation_id: Any = 0
    flags: int = 0
    timeout_us: int = 0
    priority: int = 0
    parameters: Optional[Parameters] = None


class Exchange:
    """A request and its responses. It is the key of the model's request object.

    Args:
        signature: the model's.
        inputs: tensors for the model; they belong to the request from then on.
        requested: names of the outputs to send.
        batch_size: the request's.
        options: the request's.
    """

    def __init__(
        self,
        signature: Signature,
        inputs: List[Tensor],
        requested: Tuple[str, ...],
        batch_size: int,
        options: RequestOptions,
    ) -> None:
        self.requested = requested
        self.batch_size = batch_size
        self.options = options
        self.cancelled = False
        self.began = False
        self.ended = False
        """``execute`` was called, and it and its coroutine have ended."""
        self.finished = False
        """The final flag was sent."""
        self.number = 0
        """Identifies it between two processes of a test."""
        self.on_cancel: Optional[Callable[[], None]] = None
        """Called when the request is cancelled, for a model in another process."""
        self.exception: Optional[BaseException] = None
        """The exception that ``execute`` raised, if the response stream reports it to the client."""
        self._signature = signature
        self._parents: Sequence[Exchange] = ()
        self._children: List[Exchange] = []
        self._inputs: Optional[List[Tensor]] = inputs
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()  # the garbage collector may put into it

    def take_inputs(self) -> List[Tensor]:
        """Return the tensors, once for each execution: from then on the model decides how long they live."""
        inputs, self._inputs = self._inputs, None
        assert inputs is not None
        return inputs

    def give_back(self, inputs: List[Tensor]) -> None:
        """Set the inputs for the next execution of this request."""
        self._inputs = inputs

    def transmit(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Send a response, the final flag, or both; the response stream has checked that the model may send it."""
        if response is None:
            self.put(Arrival(None, final))
        elif response.has_error():
            self.put(Arrival(_error_copy(response), final, exception=self.exception))
        else:
            outputs = prune(response, self.requested)
            kept = [tensor.name() for tensor in outputs]
            dropped = [tensor.name() for tensor in response.output_tensors() if tensor.name() not in kept]
            self.put(Arrival(self._copy(outputs, response), final, dropped))

    def fail(self, error: TritonError, exception: Optional[BaseException] = None) -> None:
        """Send an error as the only response."""
        self.put(Arrival(InferenceResponse(error=error), final=True, exception=exception))

    def cancel(self) -> None:
        """Stop waiting. BLS calls made for this request alone are cancelled with it."""
        self.cancelled = True
        if self.on_cancel is not None:
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

    def receive(self, wait_s: float) -> Optional[Arrival]:
        """Wait for the next arrival; None if none comes in time."""
        try:
            return self._arrivals.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None

    def put(self, arrival: Arrival) -> None:
        """Deliver an arrival to the test."""
        self.finished = self.finished or arrival.final
        self._arrivals.put(arrival)

    def _copy(self, outputs: "Sequence[Tensor]", response: InferenceResponse) -> InferenceResponse:
        copy = InferenceResponse([self._tensor_copy(tensor) for tensor in outputs])
        copy._parameters = response._parameters
        return copy

    def _tensor_copy(self, tensor: Tensor) -> Tensor:
        shape: Sequence[int] = tensor.shape()
        spec = self._signature.outputs.get(tensor.name())
        if spec is not None:
            shape = spec.shape_for_client(shape)
        return Tensor._from_wire(tensor.name(), tensor._datatype, shape, wire_bytes(tensor))


def _error_copy(response: InferenceResponse) -> InferenceResponse:
    error = response.error()
    assert error is not None
    return InferenceResponse(error=TritonError(error.message(), error.code()))
