"""Records of a model's log between host and stub: what goes in comes out, in pieces that a pipe takes as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from pybackend.observability.stub_output_lines import LineAssembler, ModelLine
from pybackend_wire.log_record import MARK, MOST_LINE, MOST_PIECE_BYTES, encode_record

TEXT = st.text(st.characters(codec="utf-8"))
WHOLE_FILE = st.text(st.characters(codec="utf-8"), max_size=128)
"""Names that are not shortened: the longest that a record keeps."""


def decoded(pieces):
    lines = LineAssembler()
    lines.feed(b"".join(pieces))
    return lines.take()


@given(TEXT, WHOLE_FILE, st.integers(0, 3), st.integers(0, 2**62))
def test_there_and_back(message, file, level, number):
    pieces = encode_record(number, number, level, file, number, message)
    assert decoded(pieces) == ModelLine(message, number, level, file, number)


@given(TEXT, st.integers(0, 5000))
def test_no_piece_can_be_torn(text, repeats):
    message = (text + '\x01\x1e\n"\\') * repeats
    pieces = encode_record(2**31, 2**63 - 1, 3, "ä" * 300, 10**6, message)
    for piece in pieces:
        assert len(piece) <= MOST_PIECE_BYTES
        assert piece.startswith(MARK)
        assert piece.find(b"\n") == len(piece) - 1
    assert decoded(pieces).text == message[:MOST_LINE] + (
        f"... ({len(message) - MOST_LINE} more characters)" if len(message) > MOST_LINE else ""
    )


def test_long_names_of_files_keep_their_end():
    (piece,) = encode_record(1, 1, 0, "x" * 5000 + "model.py", 7, "text")
    line = decoded([piece])
    assert line.file == "x" * 120 + "model.py"
