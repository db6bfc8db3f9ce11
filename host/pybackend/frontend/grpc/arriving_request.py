"""A large infer request while its message arrives: tensors go directly to the model's memory."""

from collections.abc import Sequence

from pybackend.engine.admission import ClientAdmission, Sender
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.grpc.peer import Peer
from pybackend.inference.tensor import Lease
from pybackend.inference.validation import Checked, validate_bytes_in_steps
from pybackend.protocol.grpc.arriving import ArrivingMessage
from pybackend.protocol.grpc.message import InferMessage
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.steps import Steps

LARGE_MESSAGE_BYTES = 64 * 1024
"""Messages up to this size are collected and decoded at once."""


class ArrivingRequest:
    """A request of which a part has arrived.

    Attributes:
        model_name: for messages; ``""`` until it has arrived.
        request_id: the client's id; ``""`` until it has arrived.
        left_bytes: bytes of the message that have not arrived.
    """

    def __init__(self, nbytes: int, peer: Peer, sender: Sender, *, drops_rest: bool) -> None:
        self.model_name = self.request_id = ""
        self.left_bytes = nbytes
        self._peer = peer
        self._frontend = peer.frontend
        self._sender = sender
        self._drops_rest = drops_rest  # after an error, because other messages follow
        self._admission: ClientAdmission | None = None
        self._error: InferenceError | None = None
        self._plan: InferPlan | None = None
        self._work: Steps[InferPlan] | None = None
        limits = peer.frontend.limits
        # It refers to this object: it is let go with the last byte, or the two would outlast the call.
        self._message: ArrivingMessage | None = ArrivingMessage(
            nbytes, limits, self._plan_of, self._allocate, self._drop_slowest_sender
        )

    @property
    def is_complete(self) -> bool:
        """Nothing more of it is needed: :meth:`finish` has an answer."""
        return not self.left_bytes or (self._error is not None and not self._drops_rest)

    @property
    def private_bytes(self) -> int:
        """Bytes that are held outside the model's memory."""
        return 0 if self._message is None else self._message.private_bytes

    @property
    def room(self) -> memoryview | None:
        """Memory for the next bytes, if they belong to a tensor."""
        return None if self._message is None else self._message.room

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self.left_bytes -= len(data)
        if self._message is not None:
            try:
                self._message.feed(data)
            except InferenceError as error:
                self._refuse(error)

    def stored(self, count: int) -> None:
        """Record that the next bytes were written to :attr:`room`."""
        self.left_bytes -= count
        assert self._message is not None
        try:
            self._message.stored(count)
        except InferenceError as error:
            self._refuse(error)

    def read_on(self) -> bool:
        """Do the next slice of the work that follows the last byte; True if there is more."""
        if self._error is not None or self._plan is not None:
            return False
        if self._work is None:
            self._work = self._read()
        try:
            next(self._work)
        except StopIteration as end:
            self._plan = end.value
            self._work = self._message = None
            return False
        except InferenceError as error:
            self._refuse(error)
            return False
        return True

    def _read(self) -> Steps[InferPlan]:
        """Convert lists of values, and walk through the elements of BYTES tensors."""
        assert self._message is not None
        plan = yield from self._message.finish()
        assert self._admission is not None
        if self._admission.is_current:
            yield from validate_bytes_in_steps(plan.request, self._admission.signature)
            plan.checked = Checked.ALL
        return plan

    def finish(self) -> tuple[ClientAdmission, InferPlan]:
        """The whole request, and its admission to the model, once :meth:`read_on` has no more work.

        Its error if it has one.
        """
        if self._error is not None:
            raise self._error.again()
        assert self._admission is not None
        assert self._plan is not None
        return self._admission, self._plan

    def release(self) -> None:
        """Release the memory of a request that will not be submitted."""
        self._work = self._message = None
        if self._plan is not None:
            self._plan.request.release()
        if self._admission is not None:
            self._admission.release()

    @property
    def arriving(self) -> Sequence[ClientAdmission]:
        """Its admission, while its tensors arrive in the model's memory."""
        own = self._admission
        return () if own is None or self._error is not None or not self.left_bytes else (own,)

    def give_up(self) -> None:
        """Release its memory, because others need it and the client is too slow."""
        self._refuse(InferenceError("the client was too slow, and others needed the memory", ErrorCode.UNAVAILABLE))

    def _drop_slowest_sender(self) -> bool:
        assert self._admission is not None
        return self._peer.flow.drop_other_sender(self._admission)

    def _refuse(self, error: InferenceError) -> None:
        self._error = error.again()  # the traceback of the first one refers to this object
        self.release()

    def _plan_of(self, message: InferMessage, arriving: bool) -> Steps[InferPlan]:
        self.model_name, self.request_id = message.model_name, message.id
        engine = self._frontend.engine
        self._admission = engine.open(message.model_name, message.model_version, self._sender)
        return (yield from self._frontend.plan_large(message, self._admission, arriving=arriving))

    def _allocate(self, nbytes: int, input_name: str) -> Lease | None:
        assert self._admission is not None
        return self._admission.allocate(nbytes, input_name, arriving=True)
