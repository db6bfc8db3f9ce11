"""From bytes to lines: however they are cut, whatever they hold."""

import json
import resource
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybackend.observability.stub_output_lines import LineAssembler, ModelLine
from pybackend_wire.log_record import MOST_LINE, MOST_PIECE_CHARACTERS, encode_record


def assembled(*chunks, partial=True):
    """All lines, after each chunk as many as are complete."""
    assembler, lines = LineAssembler(), []
    for chunk in chunks:
        assembler.feed(chunk)
        while (line := assembler.take()) is not None:
            lines.append(line)
    if partial and (line := assembler.take_partial()) is not None:
        lines.append(line)
    return lines


def texts(*chunks):
    return [line.text for line in assembled(*chunks)]


def record(message, pid=1, thread=1, level=0):
    return b"".join(encode_record(pid, thread, level, "model.py", 7, message))


SAID = (
    b"one\n\ntwo " + record("logged") + b"goes on\n" + record("long " * 2000) + b"50%\r100%\r\n" + b"\xc3\xa4\xff\nlast"
)
LINES = ["one", "", "logged", "two goes on", "long " * 2000, "100%", "ä\\xff", "last"]


@given(st.lists(st.integers(0, len(SAID)), max_size=20))
def test_cut_anywhere(cuts):
    places = [0, *sorted(cuts), len(SAID)]
    assert texts(*(SAID[begin:end] for begin, end in pairwise(places))) == LINES


@given(st.lists(st.binary(max_size=200)))
def test_every_byte_shows_up(chunks):
    """Carriage returns and marks have a meaning; everything else is a line's text."""
    chunks = [chunk.replace(b"\r", b"").replace(b"\x1e", b"") for chunk in chunks]
    expected = [part.decode("utf-8", "backslashreplace") for part in b"".join(chunks).split(b"\n")]
    assert texts(*chunks) == (expected if expected[-1] else expected[:-1])


@given(
    st.lists(st.binary(max_size=200) | st.sampled_from([b"\x1e", b"\n", b"\r", record("x"), record("y" * 6000)[:900]]))
)
def test_nothing_is_refused(chunks):
    assert len(assembled(*chunks)) <= b"".join(chunks).count(b"\n") + 1


def test_records_of_threads_and_processes_mix():
    a, b, c = (
        encode_record(pid, thread, 0, "f", 1, text * 6000)
        for pid, thread, text in [(1, 1, "a"), (1, 2, "b"), (2, 1, "c")]
    )
    mixed = b"".join(piece for pieces in zip(a, b, c, strict=True) for piece in (*pieces, b"printed\n"))
    logged = [line for line in assembled(mixed) if line.pid]
    assert [(line.pid, line.text) for line in logged] == [(1, "a" * 6000), (1, "b" * 6000), (2, "c" * 6000)]


def test_a_message_with_a_piece_missing_is_not_shown():
    pieces = encode_record(1, 1, 0, "f", 1, "x" * 6000)
    assert assembled(b"".join(pieces[:2] + pieces[3:])) == []
    assert [line.text for line in assembled(b"".join(pieces[2:] + pieces))] == ["x" * 6000]


@pytest.mark.parametrize(
    "fields",
    [
        5,
        {},
        [],
        [1, 1, 0, "f", 1, 0, 1, "text", 0],
        [1, 1, 0, "f", 1, 0, 1, "text"],
        [1, 1, 0, "f", 1, 0, 1, "text", "1", "", ""],
        [1, 1, 0, "f", 1, 0, 1, "text", 0, 0, ""],
        [True, 1, 0, "f", 1, 0, 1, "text", 0, "", ""],
        [1, 1, 0, None, 1, 0, 1, "text", 0, "", ""],
        [1, 1, 0, "f", 1, 0, 1, 5, 0, "", ""],
        [1.0, 1, 0, "f", 1, 0, 1, "text", 0, "", ""],
        [-1, 1, 0, "f", 1, 0, 1, "text", 0, "", ""],
        [1, 1, 2**70, "f", 1, 0, 1, "text", 0, "", ""],
        [1, 1, 0, "f", 1, 0, 1, "x" * 5000, 0, "", ""],
        [1, "f", 1, 1, "request"],
        [1, "f", -1, 1, "request", "error"],
    ],
)
def test_what_only_looks_like_a_record_is_printed_text(fields):
    raw = "\x1e" + json.dumps(fields)
    assert assembled(raw.encode() + b"\n") == [ModelLine(raw)]


@pytest.mark.parametrize("raw", [b"\x1e", b"\x1e[", b"a\x1eb", b"\x1e" + b"[" * 4000, b"\x1e\xff"])
def test_marks_in_printed_text(raw):
    assert texts(raw + b"\n") == [raw.decode("utf-8", "backslashreplace")]


def test_pieces_that_never_end_take_no_memory():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for pid in range(2000):
        piece = ["x" * MOST_PIECE_CHARACTERS]
        lines = LineAssembler()
        for number in range(3):
            lines.feed(b"\x1e" + json.dumps([pid, 1, 0, "f", 1, number, 10**9, *piece, 0, "", ""]).encode() + b"\n")
        assert lines.take() is None
    assembler = LineAssembler()
    for pid in range(20_000):
        for number in range(2):
            assembler.feed(b"\x1e" + json.dumps([pid, 1, 0, "f", 1, number, 500, *piece, 0, "", ""]).encode() + b"\n")
        assert assembler.take() is None
    assert len(assembler._messages) <= 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin < 20_000  # KiB


def test_lines_without_end_are_cut_as_they_come():
    assembler = LineAssembler()
    for _ in range(100):
        assembler.feed(b"x" * MOST_LINE)
        assert assembler.take() is None
    assert len(assembler._waiting) + len(assembler._text) <= 2 * MOST_LINE
    assembler.feed(b"y\nnext\n")
    assert assembler.take().text == "x" * MOST_LINE + f"... ({99 * MOST_LINE + 1} more bytes)"
    assert assembler.take().text == "next"


def test_a_record_at_the_end_of_a_long_line_is_found():
    said = record("logged")
    for cut in (1, 5, len(said) - 1):
        assert texts(b"x" * (MOST_LINE + 5) + said[:cut], said[cut:] + b"y\n") == [
            "logged",
            "x" * MOST_LINE + "... (6 more bytes)",
        ]


def test_where_the_rest_is_lost():
    """A line of text ends there; a piece of a record is nothing."""
    for said, expected in [
        (b"one\ntwo", ["one", "two"]),
        (b"one\n", ["one"]),
        (b"one\ntwo" + record("x")[:5], ["one", "two"]),
        (b"two" + record("x") + b"more", ["x", "twomore"]),
        (b"one\n" + record("x")[:5], ["one"]),
    ]:
        assembler = LineAssembler()
        assembler.feed(said)
        assembler.end_here()
        assembler.feed(b"next\n")
        lines = []
        while (line := assembler.take()) is not None:
            lines.append(line.text)
        assert lines == [*expected, "next"]


def test_partial_lines():
    assembler = LineAssembler()
    assert not assembler.has_partial
    assembler.feed(b"done\npart")
    assert assembler.take().text == "done"
    assert assembler.take() is None
    assert assembler.has_partial
    assert assembler.take_partial().text == "part"
    assert not assembler.has_partial
    assert assembler.take_partial() is None
    assembler.feed(b"\r")
    assert assembler.take_partial() is None
