"""Bytes are copied whole, whatever their number and wherever they come from."""

from __future__ import annotations

import asyncio

import pytest

from pybackend.inference.copying import LARGE_COPY_BYTES, copy_bytes


@pytest.mark.parametrize("nbytes", [0, 1, LARGE_COPY_BYTES - 1, LARGE_COPY_BYTES])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_copy(nbytes, kind):
    source = bytes(range(256)) * (nbytes // 256) + b"z" * (nbytes % 256)
    memory = bytearray(nbytes + 2)
    asyncio.run(copy_bytes(memoryview(memory)[1:-1], kind(source)))
    assert memory == b"\0" + source + b"\0"
