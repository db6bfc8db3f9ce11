"""Cures of the usual slips: a sentence for the author, which follows the exception's own message.

Exceptions of Python and NumPy say what failed, but they know nothing of tensors: ``'NoneType' object has no attribute
'as_numpy'`` comes from an input's misspelt name. This module is imported once something has failed.
"""

import os
import re
from typing import Any

from pybackend_sdk.missed import MISSED, names_of

_MOST_CHARACTERS = 2000
"""Searched of a message, which may quote the data of a request."""

_NOT_TEXT = re.compile(
    r"cannot use a string pattern on a bytes-like object|a bytes-like object is required, not 'str'|can't concat str to bytes"
    r"|expected str instance, bytes found|TextEncodeInput must be|text input must be of type `?str|Object of type bytes is not JSON serializable"
    r"|concatenate str \(not \"bytes\"\)|bytes or a tuple of bytes, not str|bytes-like object, not 'str'"
    r"|\bstr(ing)?\b.*\b(not|got|found|given)\b:? (type )?[<'\"(]*(class ')?bytes\b"
)
_METHOD_OF_ELEMENT = re.compile(r"'numpy\.ndarray' object has no attribute '(\w+)'")
_METHOD_OF_TEXT = re.compile(r"'bytes' object has no attribute '(\w+)'")
_DOUBLE = re.compile(
    r"expected scalar type Float but found Double|Double and Float|Float and Double|double != float|float != double"
    r"|Actual: \(tensor\(double\)\) ?, expected: \(tensor\(float\)\)"
)
_NO_TENSOR = re.compile(r"'NoneType' object has no attribute '(as_numpy|to_dlpack|triton_dtype|is_cpu)'")
_NOTHING_THERE = re.compile(r"list index out of range|not enough values to unpack")
_NOT_AWAITED = re.compile(r"'(_asyncio\.|asyncio\.)?(Future|coroutine)' object (has no attribute|is not iterable)")
_AWAITED = re.compile(r"object (InferenceResponse|ResponseIterator) can't be used in 'await' expression")
_NO_ARRAY = re.compile(r"^Tensor\(\): .*'numpy_array' must be a numpy\.ndarray, not (\w+)")
_NO_INDEX = re.compile(r"^string indices must be integers")

DECODE = "The elements of a BYTES tensor are bytes: `.decode()` makes a str of one"
_RAISE = (
    "Only exceptions can be raised, and a TritonError is none: `raise pb_utils.TritonModelException(...)`, or answer with "
    "`pb_utils.InferenceResponse(error=pb_utils.TritonError(...))`"
)
_NAME_FIRST = '`pb_utils.Tensor("NAME", array)`: first the name, then a NumPy array'
_AN_ARRAY = "`np.array([...], np.float32)` makes an array of a list, `np.array([...], object)` one of str"
_LOOP = "`await` and `async_exec()` need a coroutine: write `async def execute`, or call `exec()`, which waits"


def cure_of(exception: BaseException, message: str) -> str:
    """Return a sentence without its full stop, ``""`` if nothing is known about such an exception."""
    message = message[:_MOST_CHARACTERS]
    if isinstance(exception, KeyError):
        return f"{DECODE}, where the keys are str" if exception.args and type(exception.args[0]) is bytes else ""
    if isinstance(exception, RuntimeError) and message == "no running event loop":
        return _LOOP
    if _DOUBLE.search(message):
        return "`.astype(np.float32)` makes an array of FP32"
    if isinstance(exception, FileNotFoundError):
        return _about_file(exception.filename)
    if not isinstance(exception, (TypeError, AttributeError, IndexError, ValueError)):
        return ""
    if message == "exceptions must derive from BaseException":
        return _RAISE
    if _NO_ARRAY.search(message) or _NO_INDEX.search(message):
        return _about_argument(exception, message)
    if _NO_TENSOR.search(message) or _NOTHING_THERE.search(message):
        return _about_missing(exception, any_miss=message.startswith("'NoneType'"))
    if _NOT_AWAITED.search(message):
        return "`await` it, in an `async def`"
    if _AWAITED.search(message):
        return "`exec()` waits itself: leave `await` out, or call `async_exec()`"
    return _about_text(message)


def _about_text(message: str) -> str:
    """Say how bytes become str, if the message is about bytes."""
    method = _METHOD_OF_ELEMENT.search(message)
    if method and hasattr(bytes, method.group(1)):
        return "`as_numpy()` is an array of elements: `array.item().decode()` is the only one of a BYTES tensor as str"
    method = _METHOD_OF_TEXT.search(message)
    if _NOT_TEXT.search(message) or (method and hasattr(str, method.group(1))):
        return DECODE
    return ""


def _about_argument(exception: BaseException, message: str) -> str:
    no_array = _NO_ARRAY.search(message)
    if no_array:
        return _NAME_FIRST if no_array.group(1) == "str" else _AN_ARRAY
    function = _innermost(exception)
    if function is not None and "model_config" in function.co_consts:
        return "`args['model_config']` is JSON text: `json.loads(args['model_config'])` is the configuration"
    return ""


def _about_file(name: Any) -> str:
    if not isinstance(name, str) or os.path.isabs(name):
        return ""
    return "`os.path.join(pb_utils.get_model_dir(), ...)` is a file beside model.py; relative paths begin elsewhere"


def _about_missing(exception: BaseException, *, any_miss: bool) -> str:
    """Say which tensor was missed last where the exception comes from; only after failed calls unless ``any_miss``."""
    function = _innermost(exception)
    for of, text, failed in reversed(MISSED):
        if isinstance(of, tuple):
            if (any_miss or failed) and function in of:
                return text
        elif any_miss:
            request = of()
            if request is not None:
                return f"The request has no input '{text}': its inputs are {names_of(request.inputs())}"
    return ""


def _innermost(exception: BaseException) -> Any:
    """The function that raised it, None if nothing has."""
    entry = exception.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return None if entry is None else entry.tb_frame.f_code
