"""The fast path of an HTTP port: recurring requests are recognised, and go straight to the engine.

Clients send the same head with every request, and the same JSON part with other tensors. Some fields of a head may
differ: nothing here reads the names of programs and of requests, cookies, proxies' addresses, or trace contexts while
nothing is traced or logged. If a client sends such requests,

1. the first takes the ordinary way: its plan (the meaning of its JSON part) is stored, and the hash of its head without
  such fields;
2. the second is parsed, too, and its head, without them, is stored;
3. the third skips the parser, and makes the shortcut, which leads to the version;
4. the fourth and all others, if each arrives in one piece, skip parser, admission and validation: the tensors are cut
   out of the bytes and submitted, and a small answer is put together from parts that recur. If their heads are the same
   to the last byte, that head is stored too, and nothing has to be left out any more.

Everything else takes the ordinary way, which gives the same answers. With ``--no-fast-paths`` all requests take it, and
the plans are not stored either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from pybackend.engine.admission import ClientAdmission, Route
from pybackend.engine.door import Door
from pybackend.errors import InferenceError
from pybackend.frontend.access.guard import Guard
from pybackend.frontend.access.restrictions import CREDENTIALS
from pybackend.frontend.http.connection import HttpConnection, State
from pybackend.frontend.http.infer_answer import BINARY_HEAD, JSON_HEAD, InferAnswer
from pybackend.frontend.http.infer_body import SMALL_BODY_BYTES
from pybackend.frontend.http.infer_exchange import InferExchange, InferHead
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.request_reader import MAX_HEAD_BYTES, RequestHead
from pybackend.inference.response import InferenceResponse, Layout, layout_of, outputs_in
from pybackend.inference.tensor import Buffer
from pybackend.inference.validation import Checked, has_whole_elements
from pybackend.protocol.infer_plan import ALL_BINARY, ALL_JSON
from pybackend.protocol.json.infer_request import parse_header_length
from pybackend.protocol.json.infer_response import binary_header, encode_values, json_frame
from pybackend.protocol.json.tensor import unpacker
from pybackend.protocol.plan_cache import PlanCache, PlanCaches
from pybackend.recurring import Recurring
from pybackend_wire.dtypes import ITEMSIZE

MOST_HEADS, LARGEST_HEAD_BYTES = 2048, 1024
"""A client's head has up to three entries: as it is, without what nobody reads, and without the length besides."""

MOST_LAYOUTS, LONGEST_FRAME_BYTES = 512, 4096
"""Limits of each memory of answers: stubs choose the names of outputs."""

LARGEST_ANSWER_BYTES = 32 * 1024
"""Of tensors; larger answers are sent as they are."""

LARGEST_AS_TEXT_BYTES = 4096
"""The text of a number has up to 24 bytes, and up to 12 for each byte of the number."""

_READ = frozenset(
    b"host connection proxy-connection upgrade content-length transfer-encoding expect "
    b"inference-header-content-length content-encoding accept-encoding origin".split()
)
"""The fields that a port for infer requests reads, whatever its settings are, but for the trace context."""

_ALL, _HEADER, _CLOSING = (
    Checked.ALL,
    Checked.HEADER,
    State.CLOSING,
)  # looked up once: an enumeration's members are found by a function

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_has_context = re.compile(rb"\ntraceparent:", re.IGNORECASE).search

_LENGTH_FIELDS = (b"\nContent-Length: ", b"\ncontent-length: ")
_ZERO, _MOST_DIGITS = ord("0"), 5


class _KnownHead(Struct, eq=False):
    """The head of a small infer request that has passed the guard."""

    head: InferHead
    body_bytes: int  # size of the body, unless the memory's key leaves the length out
    answer_fields: bytes  # fields of the answer's head
    # for whole requests with this head; None before there was one, and if the head says more than model and lengths
    shortcut: _Shortcut | None = None


class _Shortcut(NamedTuple):
    """The way of a whole request to its version.

    ``json_bytes`` is the size of the JSON part, 0 if the body is JSON only.
    """

    json_bytes: int
    plans: PlanCache
    route: Route


class HttpFastPath:
    """The memory of one port, whose guard is ``guard``. A head with credentials is remembered by a digest."""

    def __init__(self, frontend: InferFrontend[Door], plans: PlanCaches, guard: Guard | None) -> None:
        credentials = CREDENTIALS if guard is None else guard.credentials
        read = _READ if guard is None else _READ | guard.reads
        self._frontend = frontend
        self._plans = plans
        self._heads: Recurring[bytes, _KnownHead] = Recurring(MOST_HEADS, LARGEST_HEAD_BYTES)
        self._credentials = credentials
        self._leave_out = None if frontend.forwards is not None else _fields_but(read)
        self._find_credential = re.compile(
            rb"\n(?:" + b"|".join(map(re.escape, sorted(credentials))) + rb")[ \t]*:", re.IGNORECASE
        ).search
        self._digest_key = token_bytes(32)
        self._has_digests = False
        self._longest_text = min(SMALL_BODY_BYTES, frontend.limits.max_input_size_bytes)

    def take(self, connection: HttpConnection, data: bytes) -> bytes:
        """Begin the request with which these bytes start, if its head is known.

        Returns:
            The bytes that are left: those of the body if the request is not whole, all if the head is not known.
        """
        end = data.find(b"\r\n\r\n") + 4
        traces = self._frontend.engine.tracer.active
        logs = connection.port.request_log.on
        if (traces or logs) and _has_context(data, 0, end) is not None:
            return data
        known = self._heads.get(data[:end])
        if known is not None:
            body_bytes = known.body_bytes
        else:
            found = self._known_otherwise(data[:end])
            if found is None:
                return data
            known, body_bytes = found
        if (
            known.shortcut is not None
            and end + body_bytes == len(data)
            and not logs
            and not traces
            and self._submit_whole(connection, known, known.shortcut, data, end)
        ):
            return b""
        if logs:
            method, target, *_ = data.split(b" ", 2)
            connection.record = connection.port.request_log.begin(
                "http", connection.address, method, target, body_bytes
            )
        writer = connection.writer
        writer.cors_fields, writer.is_1_0 = known.answer_fields, not known.head.takes_chunks
        exchange = InferExchange(connection, self._frontend, known.head)
        if exchange.admission is not None and known.shortcut is None:
            self._shorten(known, exchange.admission)
        connection.begin_known(exchange, body_bytes)
        return data[end:]

    def _submit_whole(
        self, connection: HttpConnection, known: _KnownHead, shortcut: _Shortcut, data: bytes, end: int
    ) -> bool:
        """Submit a whole request; False if it must take the ordinary way."""
        json_bytes, plans, route = shortcut
        plan = plans.whole(data, end, end + json_bytes) if json_bytes else plans.templates.filled(data[end:])
        if plan is None or (
            plan.checked is not _ALL and not (plan.checked is _HEADER and has_whole_elements(plan.request))
        ):
            return False
        answer = _FastAnswer(connection, self._frontend.answers, plan.output_format, None, known.head.takes_chunks)
        try:
            pending = route(plan.request, answer.on_response)
        except InferenceError as error:
            connection.begin_known(answer, 0)
            self._frontend.refused(known.head.model_name, error, connection.address)
            answer.fail(error)
            return True
        if pending is None:
            known.shortcut = None
            return False
        answer.pending = pending
        connection.begin_known(answer, 0)
        return True

    def _known_otherwise(self, head: bytes) -> tuple[_KnownHead, int] | None:
        """A head that is remembered without some fields, by its digest, or but for the body's length.

        And that length.
        """
        if len(head) > MAX_HEAD_BYTES:
            return None
        short = head if self._leave_out is None else self._leave_out(b"", head)
        known = self._heads.get(short)
        if known is not None:
            body_bytes = known.body_bytes
        else:
            without_length, digits = _split_length(short)
            known = self._heads.get(without_length)
            if known is None and self._has_digests:
                known = self._heads.get(self._digest(short))
                if known is not None:
                    return known, known.body_bytes
                known = self._heads.get(self._digest(without_length))
            if known is None or not digits.isdigit() or digits[0] == _ZERO or len(digits) > _MOST_DIGITS:
                return None
            body_bytes = int(digits)
            if body_bytes > self._longest_text:
                return None
        if len(head) <= LARGEST_HEAD_BYTES and self._heads.comes_again(head) and self._find_credential(head) is None:
            self._heads.remember(head, msgspec.structs.replace(known, body_bytes=body_bytes), len(head))
        return known, body_bytes

    def _digest(self, head: bytes) -> bytes:
        return blake2b(head, key=self._digest_key, digest_size=32).digest()

    def learn(self, head: RequestHead, exchange: InferExchange, answer_fields: bytes) -> None:
        """Remember a head when it comes for the second time."""
        if (
            not head.raw
            or not exchange.is_small
            or not head.content_length
            or not head.keep_alive
            or head.expects_continue
        ):
            return
        meaning = exchange.head
        short = head.raw if self._leave_out is None else self._leave_out(b"", head.raw)
        if len(short) > LARGEST_HEAD_BYTES or self._shows_credentials(meaning):
            return
        keys = [short]
        if meaning.forwarded is None:  # text and strings have other lengths each time, but most tensors do not
            without_length = _split_length(short)[0]
            keys = [without_length] if meaning.fields.header_length is None else [short, without_length]
        if self._find_credential(short) is not None:
            self._has_digests = True
            keys = [*map(self._digest, keys)]
        if meaning.fields.context is not None:
            meaning = msgspec.structs.replace(meaning, fields=meaning.fields._replace(context=None))
        for key in keys:
            if self._heads.comes_again(key):
                self._heads.remember(key, _KnownHead(meaning, head.content_length, answer_fields), len(key))

    def _shows_credentials(self, head: InferHead) -> bool:
        """True if models see credentials of a request."""
        return any(name.lower().encode() in self._credentials for name in head.forwarded or ())

    def forget_heads(self) -> None:
        self._heads.clear()

    def _shorten(self, known: _KnownHead, admission: ClientAdmission) -> None:
        """Make the shortcut for the next requests with a known head."""
        head = known.head
        if head.coding or head.forwarded or known.answer_fields or not head.takes_chunks:
            return
        json_bytes = 0
        if head.fields.header_length is not None:
            try:
                json_bytes = parse_header_length(head.fields.header_length, known.body_bytes)
            except InferenceError:
                return  # every request with this head is refused
            if not json_bytes:
                return
        route = admission.route()
        if route is not None:
            known.shortcut = _Shortcut(json_bytes, self._plans.of(admission.signature), route)


def _fields_but(read: frozenset[bytes]) -> Callable[[bytes, bytes], bytes]:
    """A function that takes all but these fields out of a head, by ``function(b"", head)``.

    It leaves malformed fields where they are: such a head is not known.
    """
    names = b"|".join(map(re.escape, sorted(read)))
    field = rb"\r\n(?!(?i:%b):)%b+:[\t\x20-\x7e\x80-\xff]*+(?=\r\n[^\t ])" % (names, _TOKEN)  # no backtracking
    return re.compile(field).sub


def _split_length(head: bytes) -> tuple[bytes, bytes]:
    """A head without the length of the body, which is then no complete head.

    And that length, ``b""`` if it was not found.
    """
    for field in _LENGTH_FIELDS:
        at = head.find(field)
        if at >= 0:
            at += len(field)
            end = head.find(b"\r", at)
            return head[:at] + head[end:-1], head[at:end]
    return head, b""


class _FastAnswer(InferAnswer):
    """The answer to a whole request whose head is known and says nothing special."""

    __slots__ = ()

    def on_response(self, response: InferenceResponse) -> None:
        connection = self.connection
        if response.error is None and not connection.port.closing and connection.state < _CLOSING:
            if self.output_format is ALL_BINARY:
                whole = small_answer(response)
            elif self.output_format is ALL_JSON:
                whole = small_json_answer(response)
            else:
                whole = b""
            if whole:
                self.pending = None
                response.release()
                self._answers.ok += 1
                connection.transport.write(whole)
                connection.answered()
                return
        super().on_response(response)


_Unpack = Callable[[Buffer], Sequence[Any]]

beginnings: Recurring[Layout, bytes] = Recurring(MOST_LAYOUTS, LONGEST_FRAME_BYTES)
frames: Recurring[Layout, tuple[bytes, tuple[_Unpack, ...]]] = Recurring(MOST_LAYOUTS, LONGEST_FRAME_BYTES)


def small_answer(response: InferenceResponse) -> bytes:
    """A whole answer: head, JSON part and tensors; ``b""`` if it is large, or has an id or parameters."""
    if response.id or response.parameters:
        return b""
    layout, data = layout_of(response, response.outputs)
    beginning = beginnings.get(layout) or _beginning(layout)
    return b"".join((beginning, *data)) if beginning else b""


def _beginning(layout: Layout) -> bytes:
    """Head and JSON part of an answer; empty if the answer is large or has no tensors."""
    nbytes = sum([size for *_, size in outputs_in(layout)])
    if not nbytes or nbytes > LARGEST_ANSWER_BYTES:
        return b""
    header_json = binary_header(layout)
    beginning = BINARY_HEAD % (len(header_json), len(header_json) + nbytes) + header_json
    if len(beginning) > LONGEST_FRAME_BYTES:
        return b""
    beginnings.remember(layout, beginning, len(beginning))
    return beginning


def small_json_answer(response: InferenceResponse) -> bytes:
    """A whole answer that is JSON only.

    It is ``b""`` if it is large, has parameters, or outputs that are no finite numbers.
    """
    if response.parameters:
        return b""
    layout, data = layout_of(response, response.outputs)
    known = frames.get(layout) or _frame(layout)
    if known is None:
        return b""
    frame, unpackers = known
    texts = []
    for unpack, each in zip(unpackers, data, strict=True):
        text = encode_values(unpack(each))
        if b"null" in text:
            return b""
        texts.append(text)
    body = frame % tuple(texts)
    if response.id:
        body = b'{"id":"%b",%b' % (response.id.encode(), body[1:])
    return JSON_HEAD % len(body) + body


def _frame(layout: Layout) -> tuple[bytes, tuple[_Unpack, ...]] | None:
    """The JSON of an answer with ``%b`` for the data of each output, and what reads the data.

    None if the answer is unusual.
    """
    outputs = outputs_in(layout)
    nbytes = sum([size for *_, size in outputs])
    if nbytes > LARGEST_AS_TEXT_BYTES or not all(ITEMSIZE[datatype] for _, datatype, *_ in outputs):
        return None
    frame = json_frame(layout)
    if len(frame) > LONGEST_FRAME_BYTES:
        return None
    known = frame, tuple([unpacker(datatype, size) for _, datatype, _, size in outputs])
    frames.remember(layout, known, len(frame))
    return known
