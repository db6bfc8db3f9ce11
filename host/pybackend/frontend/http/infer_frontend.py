"""The state that all connections of the HTTP port share, and the request heads that they know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pybackend.engine.engine import InferenceEngine
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.compression import Coding
from pybackend.frontend.http.connection_clock import ConnectionClock
from pybackend.frontend.http.cors import Cors
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.infer_body import HTTP_CLIENT
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.frontend.slow_senders import SlowSenders
from pybackend.frontend.traced import ContextFields
from pybackend.frontend.watch import Watch
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches

MOST_KNOWN_HEADS, LARGEST_KNOWN_HEAD_BYTES = 1024, 1024
"""Limits of the cache of request heads, 1 MB in all."""


class KnownHead(NamedTuple):
    """The parsed head of a small infer request."""

    model_name: str
    model_version: str
    header_length: bytes | None
    body_bytes: int
    takes_chunks: bool
    coding: Coding | None
    forwarded: Mapping[str, str] | None
    answer_fields: bytes
    context: ContextFields | None


class InferFrontend(ConnectionClock):
    """State shared by all connections.

    Attributes:
        engine: handles the requests.
        limits: bounds of request bodies.
        plans: cached plans of earlier requests.
        heads: cached request heads, parsed. They have passed the guard.
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

    def remember(self, head: bytes, meaning: KnownHead) -> None:
        """Cache a parsed head: clients send the same one with every request, and it need not be parsed again.

        The oldest entry is evicted.
        """
        if len(self.heads) >= MOST_KNOWN_HEADS:
            del self.heads[next(iter(self.heads))]
        self.heads[head] = meaning
