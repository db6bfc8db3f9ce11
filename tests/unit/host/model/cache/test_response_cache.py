"""The cache in the server's memory keeps within its bytes, and what was asked for last."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from pybackend.model.cache.response_cache import ENTRY_BYTES, CachedOutput, CachedResponse, LocalCache

SIZE_BYTES = 4 * ENTRY_BYTES
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(st.tuples(KEYS, st.none() | st.integers(ENTRY_BYTES, SIZE_BYTES + 20)), max_size=60)
"""Look-ups, and insertions of so many bytes."""


def response(nbytes):
    size = nbytes - ENTRY_BYTES
    return CachedResponse([CachedOutput("OUT", "UINT8", (size,), bytes(size))], None)


@given(STEPS)
def test_any_use_is_that_of_a_list_in_order_of_use(steps):
    cache, expected = LocalCache(SIZE_BYTES), OrderedDict()
    hits = misses = evictions = 0
    for key, nbytes in steps:
        if nbytes is None:
            assert cache.get(key) is expected.get(key)
            hits, misses = hits + (key in expected), misses + (key not in expected)
            if key in expected:
                expected.move_to_end(key)
        else:
            entry = response(nbytes)
            assert cache.takes(nbytes) == (nbytes <= SIZE_BYTES)
            cache.put(key, entry)
            if nbytes <= SIZE_BYTES:
                expected.pop(key, None)
                while sum(each.nbytes for each in expected.values()) + nbytes > SIZE_BYTES:
                    expected.popitem(last=False)
                    evictions += 1
                expected[key] = entry
        figures = cache.figures
        assert figures.used_bytes == sum(each.nbytes for each in expected.values()) <= SIZE_BYTES
        assert (figures.entries, figures.hits, figures.misses) == (len(expected), hits, misses)
        assert figures.evictions == evictions


def test_an_entry_that_is_too_large_drives_nobody_out():
    cache = LocalCache(SIZE_BYTES)
    small = response(SIZE_BYTES)
    cache.put(b"small", small)
    cache.put(b"large", response(SIZE_BYTES + 1))
    assert cache.get(b"small") is small
    assert cache.get(b"large") is None
