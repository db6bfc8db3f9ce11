"""Tensors whose bytes are written to their places as they arrive."""

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.tensor import InputTensor
from pybackend.protocol.arriving_tensors import ArrivingTensors

FIRST_BYTES = 4


class Lease:
    """A block of which only the first bytes are there until they have arrived; without ``room``, all bytes lie
    elsewhere."""

    is_of_model = True
    segment = offset = 0

    def __init__(self, nbytes, *, room):
        self._room = room
        self.view = memoryview(bytearray(FIRST_BYTES))
        self._whole = memoryview(bytearray(nbytes))

    def arrived(self, nbytes):
        if nbytes >= FIRST_BYTES and self.view is not self._whole:
            self._whole[:FIRST_BYTES] = self.view
            self.view = self._whole
        return 0 if self._room and nbytes >= FIRST_BYTES else nbytes

    def release(self):
        pass


def tensors_of(allocate, on_shortage=lambda: False):
    return ArrivingTensors(lambda nbytes, _name: allocate(nbytes), on_shortage)


@pytest.mark.parametrize("piece", [1, 3, 4, 100])
@pytest.mark.parametrize("room", [True, False])
def test_bytes_reach_their_tensor_in_whichever_pieces_they_come(piece, room):
    arriving = tensors_of(lambda nbytes: Lease(nbytes, room=room))
    for number in range(1, 4):
        tensor = InputTensor("X", "UINT8", [10])
        arriving.begin(tensor, 10)
        data = memoryview(bytes(range(10)))
        while data:
            assert arriving.room is not None
            data = data[arriving.feed(data[:piece]) :]
        assert (arriving.room, arriving.left_bytes, bytes(tensor.data)) == (None, 0, bytes(range(10)))
        assert arriving.private_bytes == (0 if room else 10 * number), "those of all tensors that are there count"
    arriving.release()
    assert arriving.private_bytes == 0


def test_a_tensor_may_have_no_bytes_or_no_place_in_the_model():
    arriving = tensors_of(lambda _nbytes: None)
    empty, private = InputTensor("E", "UINT8", [0]), InputTensor("P", "UINT8", [2])
    arriving.begin(empty, 0)
    assert (arriving.room, empty.data) == (None, b"")
    arriving.begin(private, 2)
    arriving.room[:] = b"ab"
    arriving.stored(2)
    assert (bytes(private.data), private.lease, arriving.room) == (b"ab", None, None)


def test_a_shortage_that_is_relieved_is_no_error():
    relieved = []

    def allocate(nbytes):
        if len(relieved) < 2:
            raise InferenceError("no memory", ErrorCode.UNAVAILABLE)
        return Lease(nbytes, room=True)

    arriving = tensors_of(allocate, lambda: not relieved.append(1))
    arriving.begin(InputTensor("X", "UINT8", [10]), 10)
    assert len(relieved) == 2
