"""Heads are known but for fields that nobody reads, in whatever form clients send these, and mean what they say."""

import pytest
from hpack.hpack import encode_integer
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from pybackend_http2 import Config, ErrorCode, RemoteProtocolError, StreamError, Use
from pybackend_http2.fields import STATIC_TABLE
from pybackend_http2.header_decoder import HeaderDecoder
from tests.support.fuzzing import examples
from tests.support.reachable import texts_of

HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
USES = {b"x-read": Use.READS, b"te": Use.READS, b"secret": Use.READS, b"apart": Use.READS_APART}

HEAD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"x:8001")]
HEAD += [(b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"user-agent", b"some-client/1.2")]


def config(**options):
    return Config(use_of=lambda name: USES.get(name, Use.IGNORES), **options)


def number(value, bits, pattern):
    first, *others = encode_integer(value, bits)
    return bytes([first | pattern, *others])


def string(text, *, huffman=False):
    return (
        number(len(HUFFMAN.encode(text)), 7, 0x80) + HUFFMAN.encode(text) if huffman else number(len(text), 7, 0) + text
    )


class Encoder:
    """A client's encoder that sends each field in the form that a test wants."""

    def __init__(self):
        self.table = []  # the newest entry first
        self.most_bytes = 4096

    def resize(self, most_bytes):
        """Say that the table has another size."""
        self.most_bytes = most_bytes
        self._shrink()
        return number(most_bytes, 5, 0x20)

    def _shrink(self):
        while sum(len(name) + len(value) + 32 for name, value in self.table) > self.most_bytes:
            self.table.pop()

    def index(self, field):
        """The index of a field, or of a name if it is one; 0 for none."""
        both = [*STATIC_TABLE, *self.table]
        found = [at for at, each in enumerate(both, 1) if field in (each, each[0])]
        return found[0] if found else 0

    def indexed(self, name, value, **_):
        """An index if there is one."""
        index = self.index((name, value))
        return number(index, 7, 0x80) if index else self.added(name, value)

    def added(self, name, value, *, huffman=False, named=True):
        """A literal that goes to the table, by the name's index if that is wanted."""
        block = self._literal(0x40, 6, name, value, huffman=huffman, named=named)
        self.table.insert(0, (name, value))
        self._shrink()
        return block

    def plain(self, name, value, *, huffman=False, named=True):
        """A literal that does not go to the table."""
        return self._literal(0x00, 4, name, value, huffman=huffman, named=named)

    def never(self, name, value, *, huffman=False, named=True):
        """A literal that proxies must not put into tables either."""
        return self._literal(0x10, 4, name, value, huffman=huffman, named=named)

    def _literal(self, pattern, bits, name, value, *, huffman, named):
        index = self.index(name) if named else 0
        beginning = number(index, bits, pattern) if index else bytes([pattern]) + string(name, huffman=huffman)
        return beginning + string(value, huffman=huffman)


def grpcio(encoder, varying):
    """The core of gRPC, which Python and C++ share: what recurs goes to the table, the caller's metadata do not."""
    head = [HEAD[2], HEAD[3], HEAD[0], HEAD[1], *HEAD[4:]]
    own = b"".join(encoder.plain(*field, named=False) for field in varying)
    return b"".join(encoder.indexed(*field) for field in head) + own


def grpc_go(encoder, varying):
    """Every field goes to the table, in Huffman's code if that is shorter; names come by their index."""
    return b"".join(
        encoder.indexed(*field) if encoder.index(field) else encoder.added(*field, huffman=True)
        for field in [*HEAD, *varying]
    )


def envoy(encoder, varying):
    """So does nghttp2, which Envoy and Node.js use, but paths and credentials stay outside."""
    fields = [*HEAD[:2], *varying[:1], *HEAD[4:], *varying[1:]]
    block = b"".join(encoder.indexed(*field) for field in (HEAD[0], HEAD[1]))
    block += encoder.plain(*HEAD[2], huffman=True) + encoder.indexed(*HEAD[3])
    return block + b"".join(
        encoder.indexed(*field) if encoder.index(field) else encoder.added(*field, huffman=True) for field in fields[2:]
    )


def netty(encoder, varying):
    """Java's: as Go's, without Huffman's code."""
    return b"".join(
        encoder.indexed(*field) if encoder.index(field) else encoder.added(*field) for field in [*HEAD, *varying]
    )


def without_table(encoder, varying):
    """A client that keeps no state."""
    return b"".join(encoder.plain(*field, named=False) for field in [*HEAD, *varying])


def outside_table(encoder):
    """The head without a change of the table."""
    return b"\x83\x86" + b"".join(encoder.plain(*field) for field in HEAD[2:])


CLIENTS = [grpcio, grpc_go, envoy, netty, without_table]


def varying(count):
    """Fields of a mesh and of a tracing client."""
    return [
        (b"x-request-id", b"%032x" % (count * 7919)),
        (b"traceparent", b"00-%032x-%016x-01" % (count * 104729, count)),
        (b"apart", b"%dm" % (count * 31)),
        (b"baggage", b"k=" + b"v" * (count % 200)),
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_heads_are_known_whatever_varies(client):
    decoder, encoder = HeaderDecoder(config()), Encoder()
    heads = [decoder.request(client(encoder, varying(count))) for count in range(4)]
    known = heads[-1]
    found = 0
    for count in range(200):
        head = decoder.request(client(encoder, varying(count)))
        if head is known:
            found += 1
            assert decoder.fields_apart == ((b"apart", b"%dm" % (count * 31)),)
        else:
            assert decoder.fields_apart == ()
        assert (head.path, dict(head.fields)[b"te"]) == (b"/a/B", b"trailers")
    assert known.fields == ((b"te", b"trailers"),)
    assert found >= 195


def test_fields_that_are_read_make_another_head():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    heads = {}
    for count in range(8):
        for value in (b"1", b"2"):
            for path in (b"/a", b"/b"):
                fields = [*HEAD[:2], (b":path", path), *HEAD[3:], *varying(count), (b"x-read", value)]
                head = decoder.request(b"".join(encoder.plain(*field) for field in fields))
                heads.setdefault((value, path), set()).add(head)
                assert (head.path, dict(head.fields)[b"x-read"]) == (path, value)
    assert all(len(each) <= 3 for each in heads.values())  # two were read, and one is known


def test_what_breaks_a_rule_among_ignored_fields_is_refused():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    for count in range(4):
        decoder.request(grpc_go(encoder, varying(count)))
    for _ in range(4):
        good = grpc_go(encoder, []) + encoder.never(b"x-request-id", b"1", named=False)
        decoder.request(good)
    known = decoder.request(good)
    assert decoder.request(grpc_go(encoder, []) + encoder.never(b"x-request-id", b"2", huffman=True)) is not None
    bad = [
        (b"x-request-id", b"a\nb"),
        (b"x-request-id", b"a\0b"),
        (b"x-request-id", b" a"),
        (b"X-Request-Id", b"a"),
        (b"connection", b"close"),
        (b"te", b"gzip"),
        (b"content-length", b"x"),
        (b":path", b"/second"),
        (b":status", b"200"),
        (b"host", b"another"),
    ]
    for field in bad:
        with pytest.raises(StreamError):
            decoder.request(grpc_go(encoder, []) + encoder.never(*field, named=False))
    with pytest.raises(StreamError):  # a pseudo-header field behind an ordinary one
        decoder.request(encoder.plain(b"x-request-id", b"1") + grpc_go(encoder, []))
    assert decoder.request(good) is known
    assert decoder.request(grpc_go(encoder, [(b"cookie", b"c" * 5000)])).path == b"/a/B"
    with pytest.raises(StreamError) as refused:
        decoder.request(grpc_go(encoder, [(b"cookie", b"c" * 20_000)]))
    assert refused.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_long_fields_of_the_table_are_counted():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    for times in (1, 1, 1, 5, 5):
        decoder.request(grpc_go(encoder, []) + encoder.plain(b"y", b"1") * times)
    decoder.request(b"".join(encoder.indexed(*field) for field in HEAD) + encoder.added(b"y", b"1" * 3900))
    head = outside_table(encoder)  # there is no room for anything else
    long = encoder.indexed(b"y", b"1" * 3900)
    assert decoder.request(head + long).path == b"/a/B"
    with pytest.raises(StreamError) as refused:
        decoder.request(head + long * 5)
    assert refused.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_an_index_to_a_field_that_has_left_the_table_is_an_error():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    decoder.request(encoder.resize(600) + grpc_go(encoder, []))
    for count in range(6):
        head = decoder.request(grpc_go(encoder, [(b"x-request-id", b"%0100d" % count)]))
    assert head is decoder.request(grpc_go(encoder, [(b"x-request-id", b"%0100d" % 7)]))
    gone = bytes([0x80 | 62 + len(encoder.table)])
    with pytest.raises(RemoteProtocolError, match="index"):
        decoder.request(outside_table(encoder) + gone)


def test_a_field_that_is_cut_off_is_an_error():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    for count in range(5):
        decoder.request(without_table(encoder, varying(count)))
    block = without_table(encoder, varying(9))
    for cut in (1, 5, 40, 150):
        fresh = HeaderDecoder(config())
        for count in range(5):
            fresh.request(without_table(encoder, varying(count)))
        with pytest.raises(RemoteProtocolError):
            fresh.request(block[:-cut])


def test_text_that_must_not_be_kept_is_replaced():
    replaced = (b"secret", b"cookie")
    read_text = lambda name, value: (name, b"*" if name in replaced else value)  # noqa: E731
    decoder, encoder = HeaderDecoder(config(read_text=read_text)), Encoder()
    heads = []
    for count in range(8):
        own = [(b"secret", b"hidden-%d" % count), (b"cookie", b"other-%d" % count), *varying(count)]
        heads.append(decoder.request(grpc_go(encoder, own)))
    assert heads[-1] is heads[-2]
    assert dict(heads[-1].fields)[b"secret"] == b"*"
    table = decoder._decompressor
    assert {field.pair[1] for field in table.entries if field.pair[0] in replaced} == {b"*"}
    assert table.used_bytes == sum(len(name) + len(value) + 32 for name, value in encoder.table)
    texts = list(texts_of(decoder))
    assert b"secret" in texts
    assert not [each for each in texts if b"hidden" in each or b"other-" in each]


def test_many_indexes_to_long_fields_are_counted():
    decoder, encoder = HeaderDecoder(config(max_header_list_bytes=16_384)), Encoder()
    head = b"".join(encoder.indexed(*field) for field in HEAD)
    long = encoder.added(b"x", b"y" * 460)
    decoder.request(head + long)
    head = b"".join(encoder.indexed(*field) for field in HEAD)
    once = encoder.indexed(b"x", b"y" * 460)
    for times in (30, 30, 30):
        decoder.request(head + once * times)
    with pytest.raises(StreamError):
        decoder.request(head + once * 40)


def test_floods_of_distinct_heads_fill_no_memory():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    (memory,) = [decoder._known_heads]
    for count in range(3000):
        own = [(b"x-read", b"%0400d" % (count // 2)), (b"name-%d" % count, b"1")]
        decoder.request(without_table(encoder, own))
        if count % 100 == 0:
            sizes = {name: len(value) for name, value in vars(memory).items() if isinstance(value, dict | set)}
            assert all(size <= 256 for size in sizes.values()), sizes
            assert sum(len(key) + 16_384 - head.left_bytes for key, head in memory._heads.items()) <= 64 * 1024
    for count in range(5):
        head = decoder.request(without_table(encoder, varying(count)))
    assert decoder.request(without_table(encoder, varying(9))) is head


def test_rules_that_change_make_new_heads():
    decoder, encoder = HeaderDecoder(config()), Encoder()
    before = [decoder.request(grpc_go(encoder, varying(count))) for count in range(5)][-1]
    decoder.forget()
    after = [decoder.request(grpc_go(encoder, varying(count))) for count in range(5, 10)]
    assert before not in after
    assert after[-1] is after[-2]


# Any client

NAMES = st.sampled_from(
    [b"x-read", b"secret", b"x-request-id", b"apart", b"te", b"user-agent", b"cookie", b"X-Up", b":path"]
)
VALUES = st.sampled_from(
    [b"1", b"2", b"trailers", b"", b"\xc3\xa9", b"a\\b", b"a\n", b" x", b"v" * 130, b"w" * 600, b"z" * 4000]
)
FORMS = st.tuples(st.sampled_from(["indexed", "indexed", "added", "plain", "never"]), st.booleans(), st.booleans())
OWN = st.lists(st.tuples(NAMES, VALUES, FORMS), max_size=4)
SPOILED = st.tuples(st.integers(0, 10_000), st.integers(0, 255))
STEPS = st.tuples(
    st.lists(FORMS, min_size=len(HEAD), max_size=len(HEAD)),
    OWN,
    st.integers(1, 4),
    st.sampled_from([None, None, None, 0, 100, 4096]),
    st.none() | st.none() | st.none() | SPOILED,
)


def read_secret(name, value):
    return name.lower(), b"*" if name == b"secret" else value


def outcome(decoder, block):
    """What is read of a head, or the error."""
    try:
        head = decoder.request(block)
    except (StreamError, RemoteProtocolError) as error:
        return type(error), error.code, str(error)
    fields = [*head.fields, *decoder.fields_apart]
    kept = [[value for each, value in fields if each == name] for name in USES]
    return head.method, head.path, head.scheme, head.authority, head.content_length, kept


@given(st.lists(STEPS, max_size=12))
@settings(examples(60))
def test_any_heads_are_read_as_by_a_decoder_that_remembers_nothing(steps):
    options = {"read_text": read_secret}
    with_memory = HeaderDecoder(config(**options))
    without = HeaderDecoder(config(remembers_heads=False, **options))
    encoder = Encoder()
    for forms, own, times, most_bytes, spoiled in steps:
        for _ in range(times):
            block = encoder.resize(most_bytes) if most_bytes is not None else b""
            fields = [*zip(HEAD, forms, strict=True), *(((name, value), form) for name, value, form in own)]
            for (name, value), (form, huffman, named) in fields:
                block += getattr(encoder, form)(
                    name, value, **({} if form == "indexed" else {"huffman": huffman, "named": named})
                )
            if spoiled is not None:
                at = spoiled[0] % len(block)
                block = block[:at] + bytes([spoiled[1]]) + block[at + 1 :]
            found = outcome(with_memory, block)
            assert found == outcome(without, block)
            ours, theirs = with_memory._decompressor, without._decompressor
            assert [field.pair for field in ours.entries] == [field.pair for field in theirs.entries]
            assert (ours.used_bytes, ours.table_bytes) == (theirs.used_bytes, theirs.table_bytes)
            if found[0] is RemoteProtocolError or spoiled is not None:
                return  # the client's table is another one
