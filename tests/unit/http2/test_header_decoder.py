"""Header blocks that are remembered by their bytes, and forgotten when the table changes."""

import hpack
from hypothesis import given
from hypothesis import strategies as st

from pybackend_http2 import Config
from pybackend_http2.header_decoder import HeaderDecoder
from tests.support.http2 import POST, block


def _decoder():
    return HeaderDecoder(Config())


def test_a_block_that_repeats_is_one_object():
    decoder, encoder = _decoder(), hpack.Encoder()
    first = decoder.request(encoder.encode(POST))  # fills the dynamic table
    second = decoder.request(encoder.encode(POST))
    assert second is not first
    assert second.path == first.path == b"/a"
    assert decoder.request(encoder.encode(POST)) is second
    assert list(decoder.known.values()) == [second]


def test_a_block_that_changes_the_table_clears_the_memory():
    decoder, encoder = _decoder(), hpack.Encoder()
    for _ in range(2):
        known = encoder.encode(POST)
        decoder.request(known)
    assert known in decoder.known
    decoder.trailers(encoder.encode([("x", "new")]))
    assert decoder.known == {}
    # The same bytes have another meaning now: their indexes have moved by one.
    assert decoder.request(encoder.encode(POST)).path == b"/a"


def test_a_resized_table_clears_the_memory():
    decoder = _decoder()
    plain = block(*POST)
    decoder.request(plain)
    assert plain in decoder.known
    decoder.request(b"\x20" + plain)
    assert decoder.known == {}


def test_the_memory_is_bounded():
    decoder = _decoder()
    for number in range(2000):
        decoder.request(block(*POST, ("x", f"{number:0100d}")))
        held = sum(
            len(known) + sum(len(name) + len(value) for name, value in head.fields)
            for known, head in decoder.known.items()
        )
        assert held <= 64 * 1024
    assert decoder.known


VALUES = st.sampled_from(["1", "2", "3", "a" * 100, "b" * 1500])
SECTIONS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), VALUES, st.booleans()), max_size=4)


@given(sections=st.lists(st.tuples(SECTIONS, st.sampled_from([None, None, None, 0, 200, 4096])), max_size=30))
def test_remembered_blocks_mean_what_they_say(sections):
    """Whatever the client's encoder does with its table, each section arrives as it was sent."""
    decoder, encoder = _decoder(), hpack.Encoder()
    for section, table_bytes in sections:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        head = decoder.request(encoder.encode([*POST, *section]))
        assert [(name.decode(), value.decode()) for name, value in head.fields] == [one[:2] for one in section]


def test_most_heads_stay_when_there_are_too_many():
    decoder = _decoder()
    blocks = [block(*POST, ("x", f"{number:04}" + "v" * 996)) for number in range(40)]
    for each in blocks:
        decoder.request(each)
    assert len(decoder.known) >= 25
    assert blocks[-1] in decoder.known


def test_a_decoder_that_remembers_nothing_reads_all_the_same():
    decoder = HeaderDecoder(Config(remembers_heads=False))
    heads = [decoder.request(block(*POST)) for _ in range(2)]
    assert heads[0] is not heads[1]
    assert [head.path for head in heads] == [b"/a", b"/a"]
    assert decoder.known == {}
