"""The check of BYTES tensors that are checked in several steps: it finds the same mistakes as the check of small ones."""

import random

import pytest

from pybackend_wire.bytes_tensor import element_problem, encode_elements

LENGTHS = {
    "short": (0, 60),
    "empty": (0, 1),
    "long": (200, 400),
    "some are long": (0, 260),
}


def check(data, wanted):
    """The problem, and the number of steps that came before."""
    steps = element_problem(data, wanted, "for X")
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def texts(lengths, count, filling=b"x"):
    source = random.Random(1)
    return [filling * source.randrange(*lengths) for _ in range(count)] + [b"odd"]


@pytest.mark.parametrize("filling", [b"x", b"\0"], ids=["text", "zeros"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_many_elements(lengths, filling):
    elements = texts(lengths, 40_000, filling)
    data = encode_elements(elements)
    count = len(elements)
    assert check(data, count)[0] == ""
    assert check(memoryview(data), count + 1)[0] == f"expected {count + 1} string elements for X, got {count}"
    assert check(data, count - 1)[0] == f"unexpected number of string elements {count} for X, expecting {count - 1}"
    assert check(data + b"ab", count)[0].startswith(
        "incomplete string length indicator for X, expecting 4 bytes but only 2"
    )
    assert check(data[:-1], count)[0].startswith(
        "incomplete string data for X, expecting string of length 3 but only 2"
    )


def test_steps_are_small():
    elements = texts((1, 60), 200_000)
    data = encode_elements(elements)
    assert check(data, len(elements))[1] > len(data) // (512 * 1024)
    assert check(encode_elements(texts((1, 60), 100)), 101) == ("", 0)
