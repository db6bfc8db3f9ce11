"""State shared by all gRPC connections, and the choice of the object that answers a call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pybackend.engine.engine import InferenceEngine
from pybackend.engine.refusals import RefusalReason
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.infer_call import PROTOCOL, InferCall
from pybackend.frontend.grpc.methods import INFERENCE, methods
from pybackend.frontend.grpc.stream_call import StreamInferCall
from pybackend.frontend.grpc.unary_call import MethodCall
from pybackend.frontend.kept_bytes import KeptBytes
from pybackend.http2 import Stream
from pybackend.protocol.grpc_status import GrpcStatus
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches

if TYPE_CHECKING:
    from pybackend.frontend.grpc.connection import GrpcConnection

_INFER = f"/{INFERENCE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE}/ModelStreamInfer"


class GrpcFrontend:
    """The front end.

    Attributes:
        engine: handles the requests.
        limits: bounds of messages.
        kept: the account of bytes buffered for clients.
        plans: cached plans of earlier requests.
        connections: all open ones.
        seconds: incremented once a second by the server.
        ended: set when a connection has ended.
        closing: True once the server stops.
    """

    def __init__(self, engine: InferenceEngine, limits: BodyLimits, kept: KeptBytes) -> None:
        self.engine = engine
        self.limits = limits
        self.kept = kept
        self.plans = PlanCaches()
        self.connections: set[GrpcConnection] = set()
        self.seconds = 0
        self.ended = asyncio.Event()
        self.closing = False
        self._methods = methods(engine)

    def make_call(self, connection: GrpcConnection, stream: Stream, head: CallHead) -> Call:
        """The object that answers a call."""
        path = head.path
        if path == _INFER:
            return InferCall(connection, stream, head)
        if path == _STREAM_INFER:
            return StreamInferCall(connection, stream, head)
        method = self._methods.get(path)
        if method is not None:
            return MethodCall(connection, stream, head, method)
        return UnknownCall(connection, stream, head)

    def malformed(self, message: str, address: str) -> None:
        """Count bytes that are not HTTP/2."""
        self.engine.refusals.add(PROTOCOL, RefusalReason.MALFORMED, message, sender=address)


class UnknownCall(Call):
    """A call of a method that does not exist."""

    __slots__ = ()

    def on_message(self, _message: bytes) -> None:
        """Refuse it."""
        self.on_half_close()

    def on_half_close(self) -> None:
        """Refuse it."""
        message = f"this server has no method {self.head.path[:200]}"
        refusals = self.connection.frontend.engine.refusals
        refusals.add(PROTOCOL, RefusalReason.UNKNOWN_ROUTE, message, sender=self.connection.address)
        raise CallError(GrpcStatus.UNIMPLEMENTED, message)
