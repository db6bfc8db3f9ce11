"""Copying tensor bytes from one memory into another, off the event loop where they are many."""

from __future__ import annotations

import asyncio

import numpy as np

from pybackend.inference.tensor import Buffer

LARGE_COPY_BYTES = 1024 * 1024
"""From here on a copy is made in another thread: the event loop would stand still for a tenth of a millisecond and more."""


async def copy_bytes(target: memoryview, source: Buffer) -> None:
    """Copy as many bytes as ``target`` has; numpy lets other threads run meanwhile."""
    to, of = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
    if len(target) < LARGE_COPY_BYTES:
        np.copyto(to, of)
    else:
        await asyncio.get_running_loop().run_in_executor(None, np.copyto, to, of)
