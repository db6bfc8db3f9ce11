"""How failures are expressed: the error a response carries, the exception the SDK raises, and exceptions as text."""

from typing import Any, ClassVar, List, Sequence, Tuple, Union

from pybackend_sdk.arguments import incompatible
from pybackend_wire.errors import ErrorCode

FRAME_LIMIT = 100
"""Frames that :func:`format_exception` lists at most; endless recursion would fill a response with a thousand."""


class TritonModelException(Exception):
    """Raised by the SDK where a call cannot be served, and by models. ``str()`` is the message."""

    __module__ = "c_python_backend_utils"


class TritonError:
    """Why a request failed, as a value: hand it to ``InferenceResponse(error=...)``. It is not an exception.

    Args:
        message: what the client reads, verbatim.
        code: one of this class's codes; it decides the status that the client sees.

    Raises:
        TypeError: the message is no text, or the code none of this class's.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_code", "_message")

    UNKNOWN: ClassVar[ErrorCode] = ErrorCode.UNKNOWN
    INTERNAL: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    NOT_FOUND: ClassVar[ErrorCode] = ErrorCode.NOT_FOUND
    INVALID_ARG: ClassVar[ErrorCode] = ErrorCode.INVALID_ARG
    UNAVAILABLE: ClassVar[ErrorCode] = ErrorCode.UNAVAILABLE
    UNSUPPORTED: ClassVar[ErrorCode] = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS: ClassVar[ErrorCode] = ErrorCode.ALREADY_EXISTS
    CANCELLED: ClassVar[ErrorCode] = ErrorCode.CANCELLED

    def __init__(self, message: Union[str, bytes], code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, (str, bytes)):
            incompatible("TritonError", "message", "a str", message)
        if not isinstance(code, ErrorCode):
            incompatible("TritonError", "code", "one of TritonError's codes, e.g. TritonError.INTERNAL", code)
        self._message = printable(message)
        self._code = code

    def message(self) -> str:
        """What the client reads."""
        return self._message

    def code(self) -> ErrorCode:
        """The kind of failure; ``int()`` of it is the number of the C enumeration."""
        return self._code

    def __str__(self) -> str:
        return self._message


# The name that the native enumeration has; written in the class body it would be mangled.
setattr(TritonError, "__ErrorCode", ErrorCode)


def printable(message: Union[str, bytes]) -> str:
    """A message as text that UTF-8 can express. An error must get through, so what cannot be expressed is escaped."""
    if isinstance(message, bytes):
        return message.decode("utf-8", "backslashreplace")
    return message if message.isascii() else message.encode("utf-8", "backslashreplace").decode("utf-8")


def format_exception(exception: BaseException, hidden_prefixes: Sequence[str] = ()) -> str:
    """An exception as clients and logs show it: type, message, and where it came from, innermost frame first.

    Args:
        exception: what was raised.
        hidden_prefixes: files whose paths begin so are left out, e.g. the folders of the packages that run the model.

    Returns:
        ``<type>: <message>``, and if any frame is to be shown, a blank line, ``At:`` and a line
        ``  <file>(<line>): <function>`` for each. A TritonModelException without any is a refusal by what runs the
        model, and its message says all.
    """
    message = _message_of(exception)
    head = f"{type(exception).__name__}: {message}"
    frames = _frames(exception, tuple(hidden_prefixes))
    if not frames:
        return printable(message if type(exception) is TritonModelException else head)
    lines = [f"  {file}({line}): {function}\n" for file, line, function in frames[:FRAME_LIMIT]]
    if len(frames) > FRAME_LIMIT:
        lines.append(f"  ... ({len(frames) - FRAME_LIMIT} more)\n")
    return printable(f"{head}\n\nAt:\n{''.join(lines)}")


def _message_of(exception: BaseException) -> str:
    try:
        return str(exception)
    except Exception as failure:  # noqa: BLE001  __str__ is the model's code, and its error must still be reported
        return f"<no message: its __str__ raised {type(failure).__name__}>"


def _frames(exception: BaseException, hidden_prefixes: Tuple[str, ...]) -> List[Tuple[str, int, str]]:
    frames = []
    entry: Any = exception.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(hidden_prefixes):
            frames.append((code.co_filename, entry.tb_lineno, code.co_name))
        entry = entry.tb_next
    frames.reverse()
    if isinstance(exception, SyntaxError) and exception.filename and exception.lineno:
        # The file that does not parse has no frame: it never ran.
        frames.insert(0, (exception.filename, exception.lineno, "<module>"))
    return frames
