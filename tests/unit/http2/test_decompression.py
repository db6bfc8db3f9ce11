"""Our decoder of header blocks says what hpack's says, of good blocks and of bad ones."""

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend_http2.decompression import Decompressor
from pybackend_http2.huffman import decode_huffman

LIST_BYTES = 4096
TEXTS = st.one_of(st.sampled_from([b"a", b"b", b"te", b":path", b"", b"x" * 300]), st.binary(max_size=20))
FIELDS = st.tuples(TEXTS, TEXTS, st.booleans())
BLOCKS = st.lists(
    st.tuples(st.lists(FIELDS, max_size=6), st.booleans(), st.sampled_from([None, None, 0, 100, 4096])), max_size=8
)


def decoded(decode, block):
    """The fields, or the kind of the error."""
    try:
        return list(decode(block))
    except hpack.OversizedHeaderListError:
        return "oversized"
    except hpack.HPACKError:
        return "malformed"


def ours(made: Decompressor):
    return lambda block: [field.pair for field in made.decode(block)[0]]


def theirs(made: hpack.Decoder):
    return lambda block: [(bytes(name), bytes(value)) for name, value in made.decode(block, raw=True)]


@given(blocks=BLOCKS, data=st.data())
@settings(max_examples=200)
def test_any_blocks_mean_what_they_mean_to_hpack(blocks, data):
    encoder, own, other = hpack.Encoder(), Decompressor(LIST_BYTES), hpack.Decoder(LIST_BYTES)
    for fields, huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        block = bytearray(encoder.encode(fields, huffman=huffman))
        if block and data.draw(st.integers(0, 4)) == 0:
            block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
        block = bytes(block[: data.draw(st.sampled_from([None, None, None, 5]))])
        found = decoded(ours(own), block)
        assert found == decoded(theirs(other), block)
        if isinstance(found, str):
            return  # no further blocks can be read
    for index in range(62, 127):  # the whole dynamic table, and the first index behind it
        found = decoded(ours(own), bytes([0x80 | index]))
        assert found == decoded(theirs(other), bytes([0x80 | index]))
        if isinstance(found, str):
            return


@given(st.binary(max_size=30))
def test_text_is_decoded_as_hpack_decodes_it(text):
    assert decoded(lambda data: [decode_huffman(data)], text) == decoded(
        lambda data: [hpack.huffman_table.decode_huffman(data)], text
    )


def test_the_size_of_a_section_is_counted():
    _, size = Decompressor(LIST_BYTES).decode(hpack.Encoder().encode([("ab", "cde"), (":method", "GET")]))
    assert size == 5 + 32 + 10 + 32
