"""Arguments as the native classes take them: wrong types are ``TypeError``, and ``bytes`` pass where text is asked for.

Stands between a model's call and the SDK's objects; it knows none of them.
"""

import operator
from typing import Any, List, NoReturn

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1


def incompatible(call: str, argument: str, expected: str, value: object) -> NoReturn:
    """Refuse an argument of the wrong type.

    Args:
        call: the function as the author wrote it; class names read as constructors.
        argument: the parameter's name.
        expected: what it has to be, with its article.
        value: what it was.

    Raises:
        TypeError: always.
    """
    what = "constructor" if call[0].isupper() else "function"
    raise TypeError(
        f"{call}(): incompatible {what} arguments: '{argument}' must be {expected}, not {type(value).__name__}."
    )


def text(call: str, argument: str, value: Any) -> str:
    """Give back text that can be sent: a ``str``, or UTF-8 ``bytes`` such as an element of a BYTES tensor.

    Raises:
        TypeError: it is neither, or holds what UTF-8 cannot express.
    """
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
    """Give back an integer between ``low`` and ``high``; NumPy's integers and ``bool`` are integers too.

    Raises:
        TypeError: it is no integer, or out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        incompatible(call, argument, "an int", value)
    if not low <= number <= high:
        raise TypeError(f"{call}(): '{argument}' must lie between {low} and {high}, it is {number}.")
    return number


def sequence(call: str, argument: str, value: Any, of: str) -> List[Any]:
    """Give back the elements of a list, a tuple or another indexable sequence, but of no text, set or dict.

    Raises:
        TypeError: it is no sequence.
    """
    if isinstance(value, (list, tuple)):
        return list(value)
    indexable = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    if not indexable or isinstance(value, (str, bytes, bytearray, dict)):
        incompatible(call, argument, "a sequence of " + of, value)
    return list(value)
