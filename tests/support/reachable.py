"""The text that an object keeps in memory, as someone would find it who can read the memory."""

import gc
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from pybackend_wire.framing import FrameDecoder

_ELSEWHERE = (ModuleType, type, FunctionType, CodeType, FrameType, FrameDecoder)
"""The buffer of a decoder is not cleared when it is made, so it may contain what others have freed."""


def texts_of(*roots: Any) -> Iterator[bytes]:
    """Every text to which references lead, but for those in code, in modules, and in what the event loop keeps."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _ELSEWHERE) or type(each).__module__.startswith(("uvloop", "asyncio")):
            continue
        seen.add(id(each))
        if isinstance(each, str):
            yield each.encode("utf-8", "surrogatepass")
        elif isinstance(each, bytes | bytearray | memoryview):
            yield bytes(each)
        else:
            waiting += gc.get_referents(each)
