"""Reads a large gRPC request while it arrives: raw tensors are copied from the network to their final place, once.

Used by front ends in place of ``split_message`` and ``decode_message`` for messages that are too large to collect. A
tensor gets its room when its length has arrived; everything before the tensors is collected, up to a limit.
"""

from collections import deque
from collections.abc import Callable

from pybackend.errors import invalid
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import byte_size_error
from pybackend.protocol.arriving_tensors import Allocate, ArrivingTensors
from pybackend.protocol.grpc.message import (
    BYTES_FIELD,
    MOST_FIELDS,
    RAW,
    InferMessage,
    UnusualError,
    read_varint,
    split_message,
    too_many_fields_error,
    unreadable_error,
)
from pybackend.protocol.grpc.request import no_data_error
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.steps import Steps, at_once
from pybackend_wire.dtypes import ITEMSIZE

PlanOf = Callable[[InferMessage, bool], Steps[InferPlan]]
"""Opens an admission to the model of a message, and plans the request: with ``plan_arriving`` in one step if the flag
says that raw tensors follow, otherwise with ``decode_in_steps``."""


class ArrivingMessage:
    """One ``ModelInferRequest`` that arrives piece by piece."""

    def __init__(
        self,
        nbytes: int,
        limits: BodyLimits,
        plan_of: PlanOf,
        allocate: Allocate,
        on_shortage: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing has arrived.

        ``plan_of`` is called once, when all that precedes the first raw tensor has arrived, or at the end.
        ``on_shortage`` is called when the model has no memory left; it returns True if some may be available now.
        """
        self._left_bytes = nbytes
        self._limits = limits
        self._plan_of = plan_of
        self._plan: InferPlan | None = None
        self._collected = bytearray()  # the head; later the tag and length of a raw tensor
        self._at = self._field_count = 0  # in the head
        self._is_unusual = False
        self._waiting: deque[tuple[InputTensor, int]] = deque()
        self._tensors = ArrivingTensors(allocate, on_shortage)
        self._surplus_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            if self._tensors.room is not None:
                taken = self._tensors.feed(view)
            elif self._surplus_bytes:
                taken = min(len(view), self._surplus_bytes)
                self._surplus_bytes -= taken
            elif self._plan is None:
                taken = self._collect(view)
            else:
                taken = self._take_tag(view)
            self._left_bytes -= taken
            view = view[taken:]

    @property
    def room(self) -> memoryview | None:
        """Memory for the next bytes, if they belong to a tensor.

        Bytes that are written there are not fed: see :meth:`stored`.
        """
        return self._tensors.room

    @property
    def private_bytes(self) -> int:
        """Bytes that are held outside the model's memory, but for tensors that have none there."""
        return len(self._collected) + self._tensors.private_bytes

    def stored(self, count: int) -> None:
        """Record that the next bytes were written to :attr:`room`."""
        self._left_bytes -= count
        self._tensors.stored(count)

    def finish(self) -> Steps[InferPlan]:
        """The request, once all bytes have arrived: tensors given as lists of values are converted in steps."""
        if self._plan is None:
            return (yield from self._plan_of(split_message(bytes(self._collected), self._limits), False))
        if self._tensors.room is not None or self._surplus_bytes or self._collected:
            raise unreadable_error("its last field is cut off")
        if self._waiting:
            raise no_data_error(self._waiting[0][0].name, self._plan.request.model_name)
        return self._plan

    def _collect(self, view: memoryview) -> int:
        """Take bytes of the head; those behind its end are left."""
        before = len(self._collected)
        self._collected += view
        if self._is_unusual or not self._reach_tensors():
            self._limits.check_head(len(self._collected))
            return len(view)
        head = bytes(self._collected[: self._at])
        self._collected = bytearray()
        self._plan = at_once(self._plan_of(split_message(head, self._limits), True))
        self._waiting.extend(self._plan.binary_inputs)
        return self._at - before

    def _reach_tensors(self) -> bool:
        """Skip complete fields.

        True if the next one is a raw tensor, which has at least its tag in the bytes so far.
        """
        collected = self._collected
        while self._at < len(collected):
            tag = collected[self._at]
            if tag == RAW:
                return True
            if tag & 7 != BYTES_FIELD or tag > RAW:
                self._is_unusual = True  # split_message reads it when it is complete
                return False
            try:
                size, begin = read_varint(collected, self._at + 1)
            except IndexError:
                return False
            except UnusualError:
                raise unreadable_error("a field is too long") from None
            self._field_count += 1
            if self._field_count > MOST_FIELDS:
                raise too_many_fields_error()
            self._at = begin + size
        return False

    def _take_tag(self, view: memoryview) -> int:
        """Take one byte of the tag and the length before a raw tensor."""
        self._collected.append(view[0])
        if self._collected[0] != RAW:
            raise invalid("other fields follow raw_input_contents: write the fields of large requests in their order")
        try:
            size, _ = read_varint(self._collected, 1)
        except IndexError:
            return 1
        except UnusualError:
            raise unreadable_error("a tensor is too long") from None
        self._collected.clear()
        if size > self._left_bytes - 1:
            raise unreadable_error("a tensor is longer than the message")
        self._field_count += 1
        if self._field_count > MOST_FIELDS:
            raise too_many_fields_error()
        if self._waiting:
            self._begin_tensor(*self._waiting.popleft(), size)
        else:
            self._surplus_bytes = size
        return 1

    def _begin_tensor(self, tensor: InputTensor, expected: int, size: int) -> None:
        assert self._plan is not None
        if size != expected and ITEMSIZE[tensor.datatype]:
            raise byte_size_error(self._plan.request, tensor, size, self._plan.request.model_name)
        self._tensors.begin(tensor, size)
