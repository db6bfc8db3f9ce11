"""The map of free and used blocks against a plain model of it, over any sequence of calls."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from pybackend_wire.allocation import ALIGNMENT_BYTES, BlockMap, aligned

SEGMENT_BYTES = 64 * 40


class BlockMapMachine(RuleBasedStateMachine):
    """Allocates and releases; the model is one flag per cache line."""

    blocks = Bundle("blocks")

    def __init__(self):
        super().__init__()
        self.map = BlockMap(SEGMENT_BYTES)
        self.used = {}

    def taken(self):
        return {line for offset, size in self.used.items() for line in range(offset // 64, (offset + size) // 64)}

    def longest_gap(self):
        longest = current = 0
        taken = self.taken()
        for line in range(SEGMENT_BYTES // 64):
            current = 0 if line in taken else current + 1
            longest = max(longest, current)
        return longest * 64

    @rule(target=blocks, nbytes=st.integers(0, 64 * 12))
    def allocate(self, nbytes):
        offset = self.map.allocate(nbytes)
        if offset is None:
            # Refused only where there is really no gap: neighbours are merged.
            assert self.longest_gap() < aligned(nbytes)
            return None
        assert offset % ALIGNMENT_BYTES == 0
        size = aligned(nbytes)
        assert size >= nbytes
        assert self.map.block_bytes(offset) == size
        assert 0 <= offset <= SEGMENT_BYTES - size
        lines = set(range(offset // 64, (offset + size) // 64))
        assert not lines & self.taken(), "a block overlaps another one"
        self.used[offset] = size
        return offset

    @rule(offset=consumes(blocks))
    def release(self, offset):
        if offset is not None:
            self.map.release(offset)
            del self.used[offset]

    @rule(offset=st.integers(-64, SEGMENT_BYTES + 64))
    def release_what_is_not_there(self, offset):
        if offset not in self.used:
            with pytest.raises(KeyError):
                self.map.release(offset)

    @invariant()
    def books_are_kept(self):
        assert self.map.used_bytes == sum(self.used.values())
        assert len(self.map) == len(self.used)
        assert all(offset in self.map for offset in self.used)
        assert (-1 in self.map, SEGMENT_BYTES in self.map) == (False, False)


TestBlockMap = BlockMapMachine.TestCase
TestBlockMap.settings = settings(max_examples=60, stateful_step_count=40)


def test_everything_released_is_one_block_again():
    blocks = BlockMap(SEGMENT_BYTES)
    offsets = [blocks.allocate(64) for _ in range(40)]
    assert None not in offsets
    assert blocks.allocate(1) is None
    for offset in [*offsets[::2], *offsets[1::2]]:
        blocks.release(offset)
    assert blocks.allocate(SEGMENT_BYTES) == 0


def test_lowest_addresses_are_used_again_first():
    """Pages that were touched stay in use, others are never touched."""
    blocks = BlockMap(SEGMENT_BYTES)
    for _ in range(100):
        first, second = blocks.allocate(100), blocks.allocate(100)
        assert (first, second) == (0, 128)
        blocks.release(first)
        blocks.release(second)


@pytest.mark.parametrize(("nbytes", "size"), [(0, 64), (1, 64), (64, 64), (65, 128), (8192, 8192)])
def test_alignment(nbytes, size):
    assert aligned(nbytes) == size


def test_double_release():
    blocks = BlockMap(SEGMENT_BYTES)
    offset = blocks.allocate(5)
    blocks.release(offset)
    with pytest.raises(KeyError):
        blocks.release(offset)
