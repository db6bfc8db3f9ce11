"""A large infer request while its message arrives: tensors go directly to the model's memory."""

from __future__ import annotations

from pybackend.engine.admission import Admission, Sender
from pybackend.errors import InferenceError
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.inference.tensor import InputTensor
from pybackend.protocol.grpc_arriving import ArrivingMessage
from pybackend.protocol.grpc_message import InferMessage
from pybackend.protocol.infer_plan import InferPlan

LARGE_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are collected and decoded at once."""


class ArrivingRequest:
    """A request of which a part has arrived.

    Args:
        nbytes: size of the message.
        frontend: state shared by all connections.
        sender: the client's properties.
        drops_rest: after an error, the rest of the message must be received and dropped, because others follow it.

    Attributes:
        model_name: for messages; ``""`` until it has arrived.
        request_id: the client's id; ``""`` until it has arrived.
        left_bytes: bytes of the message that have not arrived.
    """

    def __init__(self, nbytes: int, frontend: GrpcFrontend, sender: Sender, *, drops_rest: bool) -> None:
        self.model_name = self.request_id = ""
        self.left_bytes = nbytes
        self._frontend = frontend
        self._sender = sender
        self._drops_rest = drops_rest
        self._admission: Admission | None = None
        self._error: InferenceError | None = None
        self._message = ArrivingMessage(nbytes, frontend.limits, self._plan, self._make_room)

    @property
    def is_complete(self) -> bool:
        """Nothing more of it is needed: :meth:`finish` has an answer."""
        return not self.left_bytes or (self._error is not None and not self._drops_rest)

    @property
    def private_bytes(self) -> int:
        """Bytes that are held outside the model's memory."""
        return 0 if self._error is not None else self._message.private_bytes

    @property
    def room(self) -> memoryview | None:
        """Memory for the next bytes, if they belong to a tensor."""
        return None if self._error is not None else self._message.room

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Process the next bytes."""
        self.left_bytes -= len(data)
        if self._error is None:
            try:
                self._message.feed(data)
            except InferenceError as error:
                self._refuse(error)

    def stored(self, count: int) -> None:
        """Record that the next bytes were written to :attr:`room`."""
        self.left_bytes -= count
        try:
            self._message.stored(count)
        except InferenceError as error:
            self._refuse(error)

    def finish(self) -> tuple[Admission, InferPlan]:
        """The whole request, and its admission to the model.

        Raises:
            InferenceError: it is invalid, or there is no memory for it.
        """
        try:
            if self._error is not None:
                raise self._error
            plan = self._message.finish()
        except InferenceError:
            self.release()
            raise
        assert self._admission is not None
        return self._admission, plan

    def release(self) -> None:
        """Release the memory of a request that will not be submitted."""
        if self._admission is not None:
            self._admission.release()

    def _refuse(self, error: InferenceError) -> None:
        self._error = error
        self.release()

    def _plan(self, message: InferMessage, arriving: bool) -> InferPlan:
        self.model_name, self.request_id = message.model_name, message.id
        self._admission, plan = self._frontend.plan(message, self._sender, arriving=arriving)
        return plan

    def _make_room(self, tensor: InputTensor, size: int) -> memoryview:
        assert self._admission is not None
        lease = self._admission.room(size, tensor.name, arriving=True)
        if lease is None:
            tensor.data = bytearray(size)
            return memoryview(tensor.data)
        tensor.lease, tensor.data = lease, lease.view
        return lease.view
