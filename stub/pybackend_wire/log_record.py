"""A record of a model's log, as it travels among the lines that a model's process prints.

Everything that a process of a model says takes one pipe, so that it keeps its order: what is printed, as it is, and
records, each a line of its own: a mark, a JSON array, a line feed. A piece of a record is never longer than what a pipe
takes as a whole; longer messages travel in several pieces. So no other line, of whatever thread or process, ends up inside
a piece. Whoever prints something that looks like a record writes a line of the log, which is all that a record can do.
"""

import json
from typing import List

MARK = b"\x1e"
"""Begins a record; JSON never contains it."""

MOST_LINE = 256 * 1024
"""Characters of a message, or bytes of a printed line, that are kept."""

MOST_PIECE_BYTES = 4096
"""Of a record; what Linux puts into a pipe as a whole."""

MOST_PIECE_CHARACTERS = 512
"""Of a message in pieces: each may take six bytes, and the rest of a piece needs some too."""

MOST_PIECES = MOST_LINE // MOST_PIECE_CHARACTERS + 1
"""The last one says how much was cut."""

_MOST_FILE_CHARACTERS = 128


def encode_record(pid: int, thread: int, level: int, file: str, line: int, message: str) -> "List[bytes]":
    """The pieces of a record, each to be written at once, in this order.

    Args:
        pid: who says it.
        thread: and which thread; with the process it tells the pieces of one message from those of another.
        level: number of a ``pb_utils.Logger.LogLevel``.
        file: name of the source file.
        line: in that file.
        message: text without lone surrogates.
    """
    file = file[-_MOST_FILE_CHARACTERS:]
    if len(message) > MOST_LINE:
        message = f"{message[:MOST_LINE]}... ({len(message) - MOST_LINE} more characters)"
    whole = _piece([pid, thread, level, file, line, 0, 1, message])
    if len(whole) <= MOST_PIECE_BYTES:
        return [whole]
    starts = range(0, len(message), MOST_PIECE_CHARACTERS)
    return [
        _piece([pid, thread, level, file, line, number, len(starts), message[start : start + MOST_PIECE_CHARACTERS]])
        for number, start in enumerate(starts)
    ]


def _piece(fields: "List[object]") -> bytes:
    return MARK + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
