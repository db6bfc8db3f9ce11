"""Raw tensors of a large request: each byte is written to its final place as it arrives.

Used by ``grpc.arriving``, and by the bodies of infer over HTTP. A tensor's memory is leased when its turn comes, not
when it is announced.
"""

from collections.abc import Callable
from functools import partial

from pybackend.inference.tensor import InputTensor, Lease, obtain

Allocate = Callable[[int, str], Lease | None]
"""Leases memory of a model, for so many bytes of the input of a name: ``Admission.allocate``."""


def make_room(tensor: InputTensor, nbytes: int, allocate: Allocate, on_shortage: Callable[[], bool]) -> memoryview:
    """Memory for a tensor's bytes, which becomes its ``data``: the model's, or private memory where the model has none for it.

    ``on_shortage`` is called when the model has no memory left; it returns True if some may be available now.
    """
    lease = obtain(partial(allocate, nbytes, tensor.name), on_shortage)
    if lease is None:
        tensor.data = bytearray(nbytes)
        return memoryview(tensor.data)
    tensor.lease, tensor.data = lease, lease.view
    return lease.view


class ArrivingTensors:
    """The tensors of one request, of which one at a time arrives.

    Attributes:
        room: memory for the next bytes of the current tensor; None if there is none.
        left_bytes: what is missing of the current tensor.
    """

    def __init__(self, allocate: Allocate, on_shortage: Callable[[], bool]) -> None:
        self._allocate = allocate
        self._on_shortage = on_shortage
        self._tensor: InputTensor | None = None
        self._size = 0
        self._whole_bytes = self._private_bytes = (
            0  # that lie elsewhere: of tensors that are there, and of the current one
        )
        self.room: memoryview | None = None
        self.left_bytes = 0

    @property
    def private_bytes(self) -> int:
        """Bytes that wait outside the model's memory, but for tensors that have none there."""
        return self._whole_bytes + self._private_bytes

    def begin(self, tensor: InputTensor, size: int) -> None:
        """The next tensor's bytes follow."""
        if not size:
            tensor.data = b""
            return
        self.room = make_room(tensor, size, self._allocate, self._on_shortage)
        self._tensor, self._size, self.left_bytes = tensor, size, size

    def feed(self, data: memoryview) -> int:
        """Write bytes to the room, and return how many of them belong to the current tensor."""
        assert self.room is not None
        count = min(len(data), len(self.room))
        self.room[:count] = data[:count]
        self.stored(count)
        return count

    def stored(self, count: int) -> None:
        """Record that the next bytes were written to :attr:`room`."""
        assert self.room is not None
        assert self._tensor is not None
        self.left_bytes -= count
        arrived, lease, room = self._size - self.left_bytes, self._tensor.lease, self.room[count:]
        if lease is not None:
            self._private_bytes = obtain(partial(lease.arrived, arrived), self._on_shortage)
        if not self.left_bytes:
            self._whole_bytes, self._private_bytes = self.private_bytes, 0
            self._tensor = None
        elif not room:  # it was room for the first bytes
            assert lease is not None
            self._tensor.data = lease.view
            room = lease.view[arrived:]
        self.room = room or None

    def release(self) -> None:
        """Forget the tensors of a request that will not be submitted; who has leased their memory releases it."""
        self._tensor = self.room = None
        self._whole_bytes = self._private_bytes = 0
