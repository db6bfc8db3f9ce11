"""Input memory of a model: what it hands out, what it counts, when it grows and when it goes back."""

import errno
import os

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.ipc import segment
from pybackend.ipc.arena import (
    FIRST_SEGMENT_BYTES,
    IDLE_NS,
    LARGEST_STEP_BYTES,
    LEAST_GROWTH,
    TensorArena,
    TensorBudget,
    growth_bytes,
)

MIB = 1 << 20
PLENTY_BYTES = 1 << 40
LEFT_BY_A_MODEL_BYTES = 3 * MIB


@pytest.fixture(params=[True, False], ids=["memfd", "posix"])
def has_memfd(request, monkeypatch):
    if request.param and not segment.HAS_MEMFD:
        pytest.skip("this Python has no memfd_create")
    monkeypatch.setattr(segment, "HAS_MEMFD", request.param)


@pytest.fixture
def make_arena():
    arenas = []

    def make(limit_bytes=64 * MIB):
        arenas.append(TensorArena(limit_bytes, "m"))
        return arenas[-1]

    yield make
    for arena in arenas:
        arena.close()


@pytest.mark.usefixtures("has_memfd")
def test_what_one_model_leaves_no_other_finds(make_arena):
    for _ in range(3):
        arena = make_arena()
        lease = arena.lease(LEFT_BY_A_MODEL_BYTES)
        lease.view[:] = b"\x5a" * LEFT_BY_A_MODEL_BYTES
        lease.publish()
        arena.close()
        found = make_arena().lease(LEFT_BY_A_MODEL_BYTES)
        memory = os.pread(found.memory.descriptor, LEFT_BY_A_MODEL_BYTES, found.offset)
        assert memory == bytes(LEFT_BY_A_MODEL_BYTES)


@pytest.mark.usefixtures("has_memfd")
def test_leases_do_not_touch_each_other(make_arena):
    arena = make_arena()
    leases = [arena.lease(nbytes) for nbytes in (1, 64, 65, 100_000, 2 * MIB)]
    for number, lease in enumerate(leases):
        lease.view[:] = bytes([number]) * lease.nbytes
        lease.publish()
    for number, lease in enumerate(leases):
        assert os.pread(lease.memory.descriptor, lease.nbytes, lease.offset) == bytes([number]) * lease.nbytes
        assert arena.owns(lease)


def test_a_lease_goes_back_once_with_its_last_owner(make_arena):
    arena = make_arena()
    lease = arena.lease(1000)
    used_bytes = arena.used_bytes
    assert used_bytes >= 1000
    lease.share()
    lease.release()
    assert arena.used_bytes == used_bytes
    lease.release()
    assert arena.used_bytes == 0
    other = arena.lease(1000)
    lease.release()
    assert arena.used_bytes == used_bytes
    assert (other.segment, other.offset) == (lease.segment, lease.offset)  # warm memory is used again


def test_the_limit_is_an_error_that_names_it(make_arena):
    arena = make_arena(4 * MIB)
    lease = arena.lease(3 * MIB)
    with pytest.raises(InferenceError, match=r"no input memory left for model 'm': .* --model-memory-limit") as caught:
        arena.lease(2 * MIB)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(InferenceError, match=r"larger than the whole limit.* raise --model-memory-limit") as caught:
        arena.lease(4 * MIB + 1)
    assert caught.value.code is ErrorCode.INVALID_ARG
    lease.release()
    arena.lease(4 * MIB).release()
    assert arena.used_bytes == 0


def test_what_arrives_little_by_little_takes_memory_as_it_arrives(make_arena):
    arena = make_arena(8 * MIB)
    lease = arena.lease(8 * MIB, arriving=True)
    assert arena.total_bytes == 0
    lease.arrived(1)
    assert arena.total_bytes == MIB
    lease.arrived(3 * MIB)
    assert arena.total_bytes == 3 * MIB
    other = arena.lease(4 * MIB)
    with pytest.raises(InferenceError):
        lease.arrived(5 * MIB)
    other.release()
    lease.arrived(8 * MIB)
    assert arena.total_bytes == 8 * MIB


def test_segments_go_back_when_they_have_lain_unused(make_arena):
    arena, dropped = make_arena(), []
    kept, idle = arena.lease(MIB), arena.lease(4 * MIB)
    idle.release()
    arena.trim(0, dropped.append)
    arena.trim(IDLE_NS - 1, dropped.append)
    assert dropped == []
    arena.trim(IDLE_NS, dropped.append)
    assert dropped == [idle.segment]
    assert not arena.owns(idle)
    assert arena.owns(kept)


def test_a_segment_that_is_used_again_begins_to_wait_anew(make_arena):
    arena, dropped = make_arena(), []
    arena.lease(MIB).release()
    arena.trim(0, dropped.append)
    arena.lease(MIB).release()
    arena.trim(IDLE_NS, dropped.append)
    assert dropped == []
    arena.trim(2 * IDLE_NS, dropped.append)
    assert len(dropped) == 1


@pytest.mark.parametrize(
    ("needed", "present", "limit", "expected"),
    [
        (1, 0, PLENTY_BYTES, FIRST_SEGMENT_BYTES),
        (1, 8 * MIB, PLENTY_BYTES, 8 * MIB),
        (1, 2 * LARGEST_STEP_BYTES, PLENTY_BYTES, LARGEST_STEP_BYTES),
        (1, 2 * LEAST_GROWTH * LARGEST_STEP_BYTES, PLENTY_BYTES, 2 * LARGEST_STEP_BYTES),
        (100 * MIB, 0, PLENTY_BYTES, 100 * MIB),
        (100 * MIB + 1, 0, PLENTY_BYTES, 101 * MIB),
        (1, 8 * MIB, 10 * MIB, 2 * MIB),
        (3 * MIB, 8 * MIB, 10 * MIB, 3 * MIB),  # too much: refused when it is filled
    ],
)
def test_growth(needed, present, limit, expected):
    assert growth_bytes(needed, present, limit) == expected


def test_a_terabyte_takes_a_hundred_descriptors():
    present = count = 0
    while present < PLENTY_BYTES:
        present += growth_bytes(1, present, 2 * PLENTY_BYTES)
        count += 1
    assert count < 110


@pytest.mark.usefixtures("has_memfd")
def test_all_models_share_a_budget():
    """What one of them only keeps warm goes to another one that needs it; what is leased does not."""
    budget = TensorBudget(8 * MIB)
    first, second = TensorArena(8 * MIB, "a", budget), TensorArena(8 * MIB, "b", budget)
    kept, given_back = first.lease(3 * MIB), first.lease(3 * MIB)
    with pytest.raises(
        InferenceError, match=r"those of all models take .* do not fit into the limit of 8388608 bytes"
    ) as full:
        second.lease(4 * MIB)
    assert (full.value.code, budget.is_short) == (ErrorCode.UNAVAILABLE, True)
    given_back.release()
    lease = second.lease(4 * MIB)
    assert not budget.is_short
    assert budget.used_bytes == first.total_bytes + second.total_bytes <= 8 * MIB
    lease.release()
    kept.release()
    first.close()
    second.close()
    assert budget.used_bytes == 0


def test_a_step_that_does_not_fit_into_dev_shm_becomes_smaller(make_arena, monkeypatch):
    """Growth doubles the memory; where there is no room for that, there may be room for what is needed."""
    monkeypatch.setattr(segment, "HAS_MEMFD", False)
    make, refused = os.posix_fallocate, []

    def with_little_room(descriptor, offset, nbytes):
        if nbytes > 6 * MIB:
            refused.append(nbytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(descriptor, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", with_little_room)
    arena = make_arena()
    leases = [arena.lease(5 * MIB) for _ in range(4)]
    assert max(refused) > 6 * MIB
    with pytest.raises(
        InferenceError, match=r"No space left on device\. Without memfd_create, tensors lie in /dev/shm"
    ):
        arena.lease(7 * MIB)
    for lease in leases:
        lease.release()
