"""Records of a model's log among the lines that its process prints.

All output of a model's processes goes through one pipe, which keeps it in order: printed text as it is, and records. A
record is a line: a mark, a JSON array, a line feed. A piece of a record is never longer than the largest atomic write
to a pipe; longer messages travel in several pieces. So a line of another thread or process never ends up inside a
piece. A program that prints something like a record writes a log line, which is all that a record can do.

Each failed execution is announced by a short record, the failure note. The record with the failure's whole text
follows unless the process has sent the same text a moment ago; so a model that fails a thousand times a second fills
neither the pipe nor the log. Both carry the failure's number, which is the same for equal texts.
"""

import json
from typing import List, Tuple

MARK = b"\x1e"
"""Begins a record; never occurs in JSON."""

MOST_LINE = 256 * 1024
"""Most characters of a message, or bytes of a printed line, that are kept."""

MOST_PIECE_BYTES = 4096
"""Most bytes of a record's piece: Linux writes that many to a pipe atomically."""

MOST_PIECE_CHARACTERS = 384
"""Most characters of a message per piece: each may take six bytes, and the other fields need room too."""

MOST_PIECES = MOST_LINE // MOST_PIECE_CHARACTERS + 1
"""The last piece says how much was cut off."""

NOTHING = ("", "")
"""For a message that is about no request."""

_MOST_FILE_CHARACTERS = 128

MOST_ID_CHARACTERS = 80
"""Most characters of the ids of requests, and of traces, that a record carries."""

MOST_NOTE_CHARACTERS = 200
"""Most characters of each text in a failure note."""


def encode_record(
    pid: int,
    thread: int,
    level: int,
    file: str,
    line: int,
    message: str,
    failure: int = 0,
    about: "Tuple[str, str]" = NOTHING,
) -> "List[bytes]":
    """Encode a record as pieces; each must be written with one call, in this order.

    Args:
        thread: thread that writes it; together with the process it identifies the pieces of one message.
        message: text without lone surrogates.
        failure: number of the failure that the message is about; 0 for other messages.
        about: the ids of the requests, and of their traces, that the message is about; "" if there are none.
    """
    ids, traces = about[0][:MOST_ID_CHARACTERS], about[1][:MOST_ID_CHARACTERS]
    file = file[-_MOST_FILE_CHARACTERS:]
    if len(message) > MOST_LINE:
        message = f"{message[:MOST_LINE]}... ({len(message) - MOST_LINE} more characters)"
    begin, end = [pid, thread, level, file, line], [failure, ids, traces]
    whole = _piece([*begin, 0, 1, message, *end])
    if len(whole) <= MOST_PIECE_BYTES:
        return [whole]
    texts = [message[start : start + MOST_PIECE_CHARACTERS] for start in range(0, len(message), MOST_PIECE_CHARACTERS)]
    return [_piece([*begin, number, len(texts), text, *end]) for number, text in enumerate(texts)]


def encode_failure_note(pid: int, file: str, line: int, failure: int, who: str, what: str) -> bytes:
    """Encode the note that an execution has failed, as one piece.

    Args:
        who: the execution's requests, as the end of a sentence.
    """
    who, what = who[:MOST_NOTE_CHARACTERS], what[:MOST_NOTE_CHARACTERS]
    return _piece([pid, file[-_MOST_FILE_CHARACTERS:], line, failure, who, what])


def _piece(fields: "List[object]") -> bytes:
    return MARK + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
