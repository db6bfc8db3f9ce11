"""Header blocks of answers: a decoder reads what was meant, and its table stays as it was."""

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend_http2 import HeaderBlock, LocalProtocolError

NAMES = st.one_of(
    st.sampled_from([b"content-type", b"grpc-status", b"date"]), st.from_regex(rb"\A[a-z][a-z0-9-]{0,200}\Z")
)
VALUES = st.one_of(
    st.sampled_from([b"", b"0", b"application/grpc"]), st.from_regex(rb"\A[!-~][ -~\x80-\xff]{0,300}[!-~]\Z")
)


@given(
    status=st.sampled_from([b"100", b"200", b"404", b"431", b"500"]),
    fields=st.lists(st.tuples(NAMES, VALUES), max_size=6),
)
@settings(max_examples=40)
def test_every_decoder_reads_it(status, fields):
    fields = [(name, value) for name, value in fields if name not in {b"connection", b"upgrade", b"keep-alive"}]
    section = [(b":status", status), *fields]
    block = HeaderBlock(section)
    decoder = hpack.Decoder()
    assert [tuple(field) for field in decoder.decode(block.encoded, raw=True)] == section
    assert not decoder.header_table.dynamic_entries


def test_static_fields_are_one_byte():
    assert HeaderBlock([(b":status", b"200")]).encoded == b"\x88"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"Upper", b"x"),
        (b"", b"x"),
        (b"a b", b"x"),
        (b":path", b"/"),
        (b"x", b"a\nb"),
        (b"x", b"a\r"),
        (b"x", b"\0"),
        (b"x", b" a"),
        (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"),
    ],
)
def test_fields_that_must_not_be_sent(name, value):
    with pytest.raises(LocalProtocolError):
        HeaderBlock([(b":status", b"200"), (name, value)])


def test_a_block_fits_a_frame():
    with pytest.raises(LocalProtocolError, match="does not fit a frame"):
        HeaderBlock([(b"a", b"b" * 20_000)])


def test_status_comes_first():
    with pytest.raises(LocalProtocolError):
        HeaderBlock([(b"x", b"y"), (b":status", b"200")])
