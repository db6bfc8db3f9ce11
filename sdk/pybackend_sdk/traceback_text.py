"""An exception as text for a log: the whole chain with source lines, in Python's own order and words."""

import os
import traceback
from typing import List, Optional, Sequence, Tuple

from pybackend_sdk.error import printable

_HEAD_CHARACTERS, _TAIL_CHARACTERS = 16 * 1024, 48 * 1024
"""Kept of a longer text: where the chain began, and where it ended."""


def traceback_text(error: BaseException, hidden_prefixes: "Sequence[str]" = ()) -> str:
    """Format an exception with its causes, contexts, notes and groups as Python prints them, without a final line feed.

    Frames of files whose paths begin with one of the hidden prefixes are left out. The text has no final line feed. It
    is empty if no line of code can be shown: a traceback would say nothing that the message does not say.
    """
    try:
        report = traceback.TracebackException.from_exception(error)
        parts = _parts(report)
        hidden = tuple(hidden_prefixes)
        for part in parts:
            part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(hidden)]
            if _is_syntax_error(part) and _leads_away(part.filename):
                # The file may be no code at all, but somebody's key.
                part.text = None  # type: ignore[assignment]
        if not any(part.stack or _is_syntax_error(part) for part in parts):
            return ""
        text = "".join(report.format()).rstrip("\n")
    except Exception:  # noqa: BLE001  a chain that is too deep, or exceptions whose attributes are the model's own code
        return ""
    left_out = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if left_out > 0:
        text = f"{text[:_HEAD_CHARACTERS]}\n... ({left_out} characters left out) ...\n{text[-_TAIL_CHARACTERS:]}"
    return printable(text)


def innermost_place(error: BaseException, hidden_prefixes: "Sequence[str]") -> "Tuple[str, int]":
    """Return file and line of the innermost frame that is not hidden; ``("", 0)`` if there is none.

    Code that cannot be compiled has no frame yet: the place of a syntax error is the line that it names.
    """
    hidden = tuple(hidden_prefixes)
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(hidden):
        return error.filename, error.lineno or 0
    place = "", 0
    entry = error.__traceback__
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        if not file.startswith(hidden):
            place = file, entry.tb_lineno
        entry = entry.tb_next
    return place


def _parts(report: traceback.TracebackException) -> "List[traceback.TracebackException]":
    """Return all exceptions of a chain, each once."""
    parts: List[traceback.TracebackException] = []
    waiting = [report]
    while waiting:
        part = waiting.pop()
        parts.append(part)
        waiting += [other for other in (part.__cause__, part.__context__) if other is not None]
        waiting += getattr(part, "exceptions", None) or []  # of a group, since Python 3.11
    return parts


def _leads_away(file: "Optional[str]") -> bool:
    """Whether a file is a link to something outside of its directory."""
    directory = os.path.realpath(os.path.dirname(file or ""))
    return file is not None and not os.path.realpath(file).startswith(os.path.join(directory, ""))


def _is_syntax_error(part: traceback.TracebackException) -> bool:
    """Whether the text of this exception names a file and a line without any frame."""
    return getattr(part, "lineno", None) is not None
