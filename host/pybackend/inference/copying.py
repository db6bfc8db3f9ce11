"""Copies tensor bytes between memory regions; large copies leave the event loop."""

from __future__ import annotations

import asyncio

import numpy as np

from pybackend.inference.tensor import Buffer

LARGE_COPY_BYTES = 1024 * 1024
"""Copies of this size and more run in another thread: each would block the event loop for at least 0.1 ms."""


async def copy_bytes(target: memoryview, source: Buffer) -> None:
    """Copy ``len(target)`` bytes. Copies of at least ``LARGE_COPY_BYTES`` run in a thread; numpy releases the GIL."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    if len(target) < LARGE_COPY_BYTES:
        np.copyto(to, of)
    else:
        await asyncio.get_running_loop().run_in_executor(None, np.copyto, to, of)
