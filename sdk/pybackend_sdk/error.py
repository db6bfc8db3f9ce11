"""Failures: the error in a response, the exception that the SDK raises, and exceptions formatted as text."""

from typing import Any, ClassVar, Dict, List, Sequence, Tuple, Union

from pybackend_sdk.arguments import incompatible
from pybackend_wire.errors import ErrorCode

FRAME_LIMIT, REPEATED_LIMIT = 100, 3
"""Most frames that :func:`format_exception` lists, and how often it lists the same one: endless recursion has a
thousand."""


class TritonModelException(Exception):
    """Raised by the SDK if it cannot serve a call, and by models. ``str()`` is the message."""

    __module__ = "c_python_backend_utils"


class TritonError:
    """The reason a request failed, as a value for ``InferenceResponse(error=...)``. It is not an exception.

    Args:
        message: text for the client, passed on verbatim.
        code: one of this class's codes; it decides the status in the client's response.

    Raises:
        TypeError: the message is not text, or the code is not one of this class's codes.
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
        """The text for the client."""
        return self._message

    def code(self) -> ErrorCode:
        """The kind of failure; ``int()`` of it is the number in the C enumeration."""
        return self._code

    def __str__(self) -> str:
        return self._message


# The native enumeration's name; written in the class body it would be mangled.
setattr(TritonError, "__ErrorCode", ErrorCode)


def printable(message: Union[str, bytes]) -> str:
    """Return a message as text that UTF-8 can encode. Other characters are escaped: an error must get through."""
    if isinstance(message, bytes):
        return message.decode("utf-8", "backslashreplace")
    return message if message.isascii() else message.encode("utf-8", "backslashreplace").decode("utf-8")


def format_exception(exception: BaseException, hidden_prefixes: Sequence[str] = ()) -> str:
    """Format an exception for clients and logs: type, message, and the frames it came from, innermost first.

    After the message of a usual slip stands what to do about it. Files whose paths begin with one of the hidden
    prefixes are left out, e.g. the packages that run the model. The text is ``<type>: <message>``, and if there are
    frames to show, a blank line, ``At:`` and a line ``  <file>(<line>): <function>`` for each. A TritonModelException
    without frames comes from the code that runs the model: its message alone is returned.
    """
    message = _message_of(exception)
    head = f"{type(exception).__name__}: {message}{_advice(exception, message)}"
    frames = _frames(exception, tuple(hidden_prefixes))
    if not frames:
        return printable(message if type(exception) is TritonModelException else head)
    lines = _frame_lines(frames)
    if len(lines) > FRAME_LIMIT:
        lines[FRAME_LIMIT:] = [f"  ... ({len(lines) - FRAME_LIMIT} more)\n"]
    return printable(f"{head}\n\nAt:\n{''.join(lines)}")


def _advice(exception: BaseException, message: str) -> str:
    from pybackend_sdk.cures import cure_of  # only errors need it: its expressions take a millisecond

    try:
        cure = cure_of(exception, message)
    except Exception:  # noqa: BLE001  it looks at the model's own objects
        return ""
    return f"{'' if message.endswith('.') else '.'} {cure}." if cure else ""


def _frame_lines(frames: Sequence[Tuple[str, int, str]]) -> List[str]:
    """A line for each frame; those of a recursion, which are the same again and again, are counted."""
    lines: List[str] = []
    seen: Dict[Tuple[str, int, str], int] = {}
    counted = 0
    for frame in frames:
        seen[frame] = seen.get(frame, 0) + 1
        if seen[frame] > REPEATED_LIMIT:
            counted += 1
            continue
        if counted:
            lines.append(f"  ... ({counted} more like these)\n")
            counted = 0
        file, line, function = frame
        lines.append(f"  {file}({line}): {function}\n")
    if counted:
        lines.append(f"  ... ({counted} more like these)\n")
    return lines


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
        # The file that does not parse never ran, so it has no frame.
        frames.insert(0, (exception.filename, exception.lineno, "<module>"))
    return frames
