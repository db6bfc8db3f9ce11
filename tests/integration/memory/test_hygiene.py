"""Memory that has held one model's tensors holds nothing when another model gets some."""

from __future__ import annotations

import os

import pytest

from pybackend.ipc import segment
from pybackend.ipc.arena import TensorArena

NBYTES = 3 << 20


@pytest.mark.parametrize("has_memfd", [True, False], ids=["memfd", "posix"])
def test_what_one_model_leaves_no_other_finds(has_memfd, monkeypatch):
    if has_memfd and not segment.HAS_MEMFD:
        pytest.skip("this Python has no memfd_create")
    monkeypatch.setattr(segment, "HAS_MEMFD", has_memfd)
    for _ in range(3):
        arena = TensorArena(1 << 30, "one")
        lease = arena.lease(NBYTES)
        lease.view[:] = b"\x5a" * NBYTES
        lease.publish()
        arena.close()
        other = TensorArena(1 << 30, "other")
        found = other.lease(NBYTES)
        assert os.pread(found.memory.descriptor, NBYTES, found.offset) == bytes(NBYTES)
        other.close()
