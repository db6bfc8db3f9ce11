"""Notes of tensors that a model wanted and that are not there: the explanation of a later error reads them."""

import sys
from collections import deque
from types import CodeType
from typing import Any, Deque, List, Tuple, Union
from weakref import ReferenceType, ref

Missed = Tuple[Union["ReferenceType[Any]", Tuple[CodeType, ...]], str, bool]
"""The request, the name of its missing input, and False; or the functions in which a missing output may be used, why it
is missing, and whether its response is an error."""

MISSED: "Deque[Missed]" = deque(maxlen=16)
"""The newest last."""


def note_missing_input(request: Any, name: str) -> None:
    """Remember an input that a request does not have. Optional ones may be absent, so this costs next to nothing."""
    MISSED.append((ref(request), name, False))


def note_missing_output(why: str, *, failed: bool) -> None:
    """Remember that a response does not have an output that the model wants, for its function and that one's caller."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pybackend_sdk."):
        frame = frame.f_back
    functions = (frame.f_code,) if frame.f_back is None else (frame.f_code, frame.f_back.f_code)
    MISSED.append((functions, why, failed))


def names_of(tensors: "List[Any]") -> str:
    """The names of tensors, for a sentence."""
    return ", ".join(f"'{tensor.name()}'" for tensor in tensors) or "none"
