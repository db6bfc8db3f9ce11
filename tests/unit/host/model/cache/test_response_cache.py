"""Requests that a model cannot tell apart have one key; entries are copies; the cache keeps within its bytes, and what
was asked for last."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import InputTensor, OutputTensor
from pybackend.model.cache.response_cache import (
    ENTRY_BYTES,
    CachedOutput,
    CachedResponse,
    LocalCache,
    cache_key,
    copy_of,
    weight_bytes,
)

IDENTITY = b"add_sub, version 1, loaded first"


def tensor(name="A", datatype="FP32", shape=(1,), data=b"\0\0\0\0"):
    return InputTensor(name, datatype, shape, data)


def request(*inputs, **fields):
    made = InferenceRequest("add_sub", inputs=list(inputs) or [tensor()])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


SAME = {
    "order of inputs": (request(tensor("A"), tensor("B")), request(tensor("B"), tensor("A"))),
    "order of outputs": (request(requested_outputs=("X", "Y")), request(requested_outputs=("Y", "X"))),
    "order of parameters": (request(parameters={"a": 1, "b": 2}), request(parameters={"b": 2, "a": 1})),
    "no parameters": (request(parameters={}), request(parameters=None)),
    "what the shape is kept in": (request(tensor(shape=[1])), request(tensor(shape=(1,)))),
    "where the bytes lie": (request(tensor(data=b"\0\0\0\0")), request(tensor(data=memoryview(bytearray(4))))),
    "id": (request(id="a"), request(id="b")),
    "priority and time-out": (request(), request(priority=1, timeout_us=5)),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_requests_that_a_model_cannot_tell_apart(one, other):
    assert cache_key(IDENTITY, one) == cache_key(IDENTITY, other)


DIFFERENT = {
    "bytes": (request(), request(tensor(data=b"\0\0\0\1"))),
    "name": (request(), request(tensor("B"))),
    "datatype": (request(), request(tensor(datatype="INT32"))),
    "shape": (request(), request(tensor(shape=(1, 1)))),
    "where one tensor ends": (
        request(tensor("A", "UINT8", (2,), b"xy"), tensor("B", "UINT8", (1,), b"z")),
        request(tensor("A", "UINT8", (1,), b"x"), tensor("B", "UINT8", (2,), b"yz")),
    ),
    "bytes of strings": (
        request(tensor("A", "BYTES", (1,), b"xy"), tensor("B", "BYTES", (1,), b"z")),
        request(tensor("A", "BYTES", (1,), b"x"), tensor("B", "BYTES", (1,), b"yz")),
    ),
    "requested outputs": (request(), request(requested_outputs=("X",))),
    "parameter": (request(parameters={"a": 1}), request(parameters={"a": 2})),
    "a number and a truth": (request(parameters={"a": 1}), request(parameters={"a": True})),
    "kinds of numbers": (request(parameters={"a": 1}), request(parameters={"a": 1.0})),
    "a number and its text": (request(parameters={"a": 1}), request(parameters={"a": "1"})),
    "sequence": (request(correlation_id=1), request(correlation_id=2)),
    "a sequence by number and by name": (request(correlation_id=1), request(correlation_id="1")),
    "flags": (request(), request(flags=1)),
    "lone surrogates": (request(parameters={"a": "\ud800"}), request(parameters={"a": "\ud801"})),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_requests_that_a_model_can_tell_apart(one, other):
    assert cache_key(IDENTITY, one) != cache_key(IDENTITY, other)


def test_a_model_that_was_loaded_anew_shares_no_key():
    assert cache_key(IDENTITY, request()) != cache_key(b"add_sub, version 1, loaded again", request())


def test_a_copy_outlives_the_memory_of_its_response():
    memory, released = bytearray(b"abcd"), []
    shape = [2, 2]
    outputs = [OutputTensor("OUT", "UINT8", shape, memoryview(memory))]
    response = InferenceResponse("m", "1", "first", outputs, {"a": 1}, lambda: released.append(1))
    kept = copy_of(response)
    assert kept.nbytes == weight_bytes(response) == ENTRY_BYTES + 4
    response.release()
    memory[:] = b"next"
    shape.append(7)

    answer = InferenceResponse("m", "1", "second")
    kept.fill(answer)
    (output,) = answer.outputs
    assert (output.name, output.datatype, output.shape, bytes(output.data)) == ("OUT", "UINT8", (2, 2), b"abcd")
    assert answer.parameters == {"a": 1}
    assert answer.id == "second"
    answer.release()
    assert released == [1]


SIZE_BYTES = 4 * ENTRY_BYTES
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(st.tuples(KEYS, st.none() | st.integers(ENTRY_BYTES, SIZE_BYTES + 20)), max_size=60)
"""Look-ups, and insertions of so many bytes."""


def entry_of(nbytes):
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
            entry = entry_of(nbytes)
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
    small = entry_of(SIZE_BYTES)
    cache.put(b"small", small)
    cache.put(b"large", entry_of(SIZE_BYTES + 1))
    assert cache.get(b"small") is small
    assert cache.get(b"large") is None
