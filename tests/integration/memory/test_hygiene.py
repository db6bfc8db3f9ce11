"""What tensor memory takes, and that it holds nothing of one model's tensors when another model gets some."""

import os

import pytest

from pybackend.errors import InferenceError
from pybackend.ipc.arena import TensorArena
from tests.support.descriptors import open_descriptors

MIB = 1 << 20
NBYTES = 3 * MIB


@pytest.mark.parametrize("nbytes", [100_000, 8 * MIB])
def test_what_is_announced_takes_few_descriptors(nbytes):
    """Also beyond the limit of memory, which it does not take."""
    arena = TensorArena(8 * MIB, "model")
    before = open_descriptors()
    leases = [arena.lease(nbytes, arriving=True) for _ in range(3000)]
    assert len(open_descriptors() - before) <= 64
    assert arena.total_bytes == 0
    for lease in leases:
        lease.release()
    arena.close()


def test_what_is_announced_does_not_take_all_addresses():
    arena = TensorArena(1 << 43, "model")
    leases = [arena.lease(1 << 43, arriving=True) for _ in range(2)]
    with pytest.raises(InferenceError, match="no input memory left"):
        arena.lease(1 << 43, arriving=True)
    leases.pop().release()
    arena.lease(1 << 43, arriving=True)
    arena.close()


def test_bytes_for_which_there_was_no_memory_keep_none():
    """They are written before they are counted, by the kernel."""
    arena = TensorArena(2 * MIB, "model")
    leases = [arena.lease(2 * MIB, arriving=True) for _ in range(6)]
    for number, lease in enumerate(leases):
        lease.view[:] = bytes([number + 1]) * 2 * MIB
        if number == 0:
            lease.arrived(2 * MIB)
            continue
        with pytest.raises(InferenceError, match="no input memory left"):
            lease.arrived(2 * MIB)
        lease.release()
    descriptors = {lease.memory.descriptor for lease in leases} - {-1}
    assert sum(os.fstat(descriptor).st_blocks * 512 for descriptor in descriptors) == arena.total_bytes == 2 * MIB
    assert bytes(leases[0].view) == b"\x01" * 2 * MIB
    arena.close()
