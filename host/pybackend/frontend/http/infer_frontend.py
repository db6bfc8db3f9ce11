"""The steps that all infer requests over HTTP share, and the request heads that connections know.

Connections answer most infer requests themselves; ASGI routes answer ``generate``, the ports for clouds, and applications that
are mounted under another server. Opening a body, completing a request and counting a refusal are written here once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from secrets import token_bytes
from typing import NamedTuple

from msgspec import Struct

from pybackend.engine.admission import Admission, Route
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.secrets import CREDENTIALS
from pybackend.frontend.compression import Coding
from pybackend.frontend.http.compressed_body import Body, CompressedBody
from pybackend.frontend.http.connection_clock import ConnectionClock
from pybackend.frontend.http.content_coding import request_coding
from pybackend.frontend.http.cors import Cors
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.head_fields import HeadFields
from pybackend.frontend.http.infer_body import HTTP_CLIENT, SMALL_BODY_BYTES, StreamedBody
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.slow_senders import SlowSenders
from pybackend.frontend.traced import ContextFields, begin_trace, is_chosen
from pybackend.frontend.watch import Watch
from pybackend.inference.request import InferenceRequest
from pybackend.protocol.infer_request import parse_header_length
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCache, PlanCaches
from pybackend.tracing.request_trace import RequestTrace

MOST_KNOWN_HEADS, LARGEST_KNOWN_HEAD_BYTES = 1024, 1024
"""Limits of the cache of request heads, 1 MB in all."""

_LENGTH_FIELDS = (b"\nContent-Length: ", b"\ncontent-length: ")
_ZERO, _MOST_DIGITS = ord("0"), 5


def split_length(head: bytes) -> tuple[bytes, bytes]:
    """A head without the length of the body, which is then no complete head; and that length, ``b""`` if it was not found."""
    for field in _LENGTH_FIELDS:
        at = head.find(field)
        if at >= 0:
            at += len(field)
            end = head.find(b"\r", at)
            return head[:at] + head[end:-1], head[at:end]
    return head, b""


class KnownHead(Struct, eq=False):
    """The parsed head of a small infer request.

    Attributes:
        body_bytes: size of the body, if :attr:`has_length`.
        shortcut: for requests with this head; None before there was one, and if it has a field that few requests have.
    """

    model_name: str
    model_version: str
    header_length: bytes | None
    body_bytes: int
    takes_chunks: bool
    coding: Coding | None
    forwarded: Mapping[str, str] | None
    answer_fields: bytes
    context: ContextFields | None
    shortcut: Shortcut | None = None

    @property
    def is_plain(self) -> bool:
        """True if nothing in it but the model and the lengths matters."""
        unusual = self.coding or self.forwarded or self.answer_fields or self.context is not None
        return self.takes_chunks and not unusual

    @property
    def has_length(self) -> bool:
        """True if the length of the body belongs to what is remembered: the length of text differs from time to time."""
        return self.header_length is not None or self.forwarded is not None


class Shortcut(NamedTuple):
    """The way of a request whose head is known, and which arrives in one piece.

    Attributes:
        json_bytes: size of the JSON part, 0 if the body is JSON only.
        plans: of the version.
        route: to the version.
    """

    json_bytes: int
    plans: PlanCache
    route: Route


class InferFrontend(ConnectionClock):
    """State shared by all connections and routes.

    Attributes:
        engine: handles the requests.
        limits: bounds of request bodies.
        plans: cached plans of earlier requests.
        heads: cached request heads, parsed. They have passed the guard. Those with credentials are cached by a digest.
        forwards: the headers that become request parameters; None for none.
        senders: connections of all ports whose requests arrive in models' memory.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        limits: BodyLimits,
        kept: KeptBytes,
        watch: Watch | None = None,
        guard: HttpGuard | None = None,
        cors: Cors | None = None,
        forwards: ForwardedHeaders | None = None,
        senders: SlowSenders | None = None,
    ) -> None:
        super().__init__(kept, watch, guard, cors)
        self.forwards = forwards
        self.senders = SlowSenders() if senders is None else senders
        self.engine = engine
        self.answers = engine.answers[HTTP_CLIENT.protocol]
        self.limits = limits
        self.plans = PlanCaches()
        self.heads: dict[bytes, KnownHead] = {}
        self._credentials = CREDENTIALS if guard is None else guard.credentials
        self._find_credential = re.compile(
            rb"\n(?:" + b"|".join(map(re.escape, sorted(self._credentials))) + rb")[ \t]*:", re.IGNORECASE
        ).search
        self._digest_key = token_bytes(32)
        self._has_digests = False
        self._longest_text = min(SMALL_BODY_BYTES, limits.max_input_size_bytes)

    def shows_credentials(self, forwarded: Mapping[str, str] | None) -> bool:
        """True if models see credentials of a request: its head is not cached."""
        return bool(forwarded) and any(name.lower().encode() in self._credentials for name in forwarded or ())

    def key_of(self, head: bytes) -> bytes:
        """By this a head is cached: the head, or its digest if it has credentials."""
        if self._find_credential(head) is None:
            return head
        self._has_digests = True
        return self._digest(head)

    def _digest(self, head: bytes) -> bytes:
        return blake2b(head, key=self._digest_key, digest_size=32).digest()

    def body(
        self, admission: Admission, fields: HeadFields, nbytes: int | None, on_shortage: Callable[[], bool]
    ) -> Body:
        """Receives a body that is large, compressed, or of unknown size.

        Args:
            admission: to the model.
            fields: of the request's head.
            nbytes: the announced size; None if there is none.
            on_shortage: called when the model has no memory left; returns True if some may be available now.

        Raises:
            InferenceError: the fields are malformed, or announce too large a body.
        """
        coding = request_coding(fields.encodings) if fields.encodings else None
        length = None if coding is not None else nbytes
        body = StreamedBody(admission, fields.header_length, length, self.limits, on_shortage)
        return body if coding is None else CompressedBody(body, coding, self.limits)

    def traced(
        self,
        admission: Admission,
        request: InferenceRequest,
        fields: ContextFields | None,
        began_ns: int = 0,
        *,
        sends: bool = True,
    ) -> RequestTrace | None:
        """Begin the trace of a complete request; the arguments are those of :func:`begin_trace`. None if it is not traced."""
        tracer = self.engine.tracer
        if not is_chosen(tracer, admission.full_name, fields):
            return None
        return begin_trace(tracer, request, admission.full_name, "HTTP", began_ns=began_ns, fields=fields, sends=sends)

    def refused(self, model: str, error: InferenceError, address: str) -> None:
        """Count a request that no model accepted; ``model`` is its name in the request, or its full name."""
        self.engine.refusals.add_error(HTTP_CLIENT.protocol, model, error, address)

    def known(self, head: bytes) -> tuple[KnownHead, int] | None:
        """The meaning of a cached head, and the length of its body; None if it is not cached."""
        known = self.heads.get(head)
        return self.known_otherwise(head) if known is None else (known, known.body_bytes)

    def known_otherwise(self, head: bytes) -> tuple[KnownHead, int] | None:
        """As :meth:`known`, for a head that is not cached as it is: by its digest, or but for the length."""
        without_length, digits = split_length(head)
        known = self.heads.get(without_length)
        if known is None and self._has_digests:
            known = self.heads.get(self._digest(head))
            if known is not None:
                return known, known.body_bytes
            known = self.heads.get(self._digest(without_length))
        if known is None or not digits.isdigit() or digits[0] == _ZERO or len(digits) > _MOST_DIGITS:
            return None
        body_bytes = int(digits)
        return (known, body_bytes) if body_bytes <= self._longest_text else None

    def remember(self, key: bytes, meaning: KnownHead) -> None:
        """Cache a parsed head: clients send the same one with every request, and it need not be parsed again.

        The oldest entry is evicted.

        Args:
            key: :meth:`key_of` the head, without the length unless that belongs to its meaning.
            meaning: of the head.
        """
        if len(self.heads) >= MOST_KNOWN_HEADS:
            del self.heads[next(iter(self.heads))]
        self.heads[key] = meaning

    def shorten(self, meaning: KnownHead, admission: Admission) -> None:
        """Make the shortcut for the next requests with a known head."""
        if not meaning.is_plain:
            return
        json_bytes = 0
        if meaning.header_length is not None:
            try:
                json_bytes = parse_header_length(meaning.header_length, meaning.body_bytes)
            except InferenceError:
                return  # every request with this head is refused
            if not json_bytes:
                return
        route = admission.route()
        if route is not None:
            meaning.shortcut = Shortcut(json_bytes, self.plans.of(admission.signature), route)
