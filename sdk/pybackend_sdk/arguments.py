"""Argument checks like those of Triton's native classes: a wrong type is a ``TypeError``, and ``bytes`` count as text.

This module sits between a model's call and the SDK's objects, and knows none of them.
"""

import operator
from typing import Any, List, NoReturn

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1


def incompatible(call: str, argument: str, expected: str, value: object) -> NoReturn:
    """Refuse an argument of the wrong type.

    ``call`` is the function as the author wrote it; a capitalised name is a constructor. ``expected`` has its article.
    """
    what = "constructor" if call[0].isupper() else "function"
    raise TypeError(
        f"{call}(): incompatible {what} arguments: '{argument}' must be {expected}, not {type(value).__name__}."
    )


def text(call: str, argument: str, value: Any) -> str:
    """Return text that can be sent: a ``str``, or UTF-8 ``bytes`` such as an element of a BYTES tensor."""
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise TypeError(f"{call}(): '{argument}' holds surrogates, which UTF-8 cannot express.") from None
        return value
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise TypeError(f"{call}(): '{argument}' is bytes that are not UTF-8.") from None
    incompatible(call, argument, "a str", value)


def integer(call: str, argument: str, value: Any, low: int, high: int) -> int:
    """Return an integer between ``low`` and ``high``; NumPy integers and ``bool`` count as integers."""
    try:
        number = operator.index(value)
    except TypeError:
        incompatible(call, argument, "an int", value)
    if not low <= number <= high:
        raise TypeError(f"{call}(): '{argument}' must lie between {low} and {high}, it is {number}.")
    return number


def sequence(call: str, argument: str, value: Any, of: str) -> List[Any]:
    """Return the elements of a list, a tuple or another indexable sequence; text, sets and dicts are refused."""
    if isinstance(value, (list, tuple)):
        return list(value)
    indexable = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if not indexable or isinstance(value, (str, bytes, bytearray, dict)):
        incompatible(call, argument, "a sequence of " + of, value)
    return list(value)
