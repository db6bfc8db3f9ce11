"""The choice of the object that answers a call, by its path."""

from __future__ import annotations

from collections.abc import Callable

from pybackend.engine.engine import InferenceEngine
from pybackend.engine.refusals import RefusalReason
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.call_connection import CallConnection
from pybackend.frontend.grpc.compressed_answers import (
    CompressedAnswers,
    CompressedInferCall,
    CompressedStreamInferCall,
    response_coding,
)
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.frontend import PROTOCOL
from pybackend.frontend.grpc.head import CallHead
from pybackend.frontend.grpc.infer_call import InferCall
from pybackend.frontend.grpc.methods import INFERENCE, methods
from pybackend.frontend.grpc.stream_call import StreamInferCall
from pybackend.frontend.grpc.unary_call import MethodCall
from pybackend.frontend.http2 import Stream
from pybackend.protocol.grpc.status import GrpcStatus

MakeCall = Callable[[CallConnection, Stream, CallHead], Call]

_INFER = f"/{INFERENCE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE}/ModelStreamInfer"
_COMPRESSED: dict[str, type[CompressedAnswers]] = {
    _INFER: CompressedInferCall,
    _STREAM_INFER: CompressedStreamInferCall,
}


class Dispatch:
    """Makes the calls of one server.

    Args:
        engine: handles the requests.
        infer: makes those of ``ModelInfer``.
    """

    def __init__(self, engine: InferenceEngine, infer: MakeCall = InferCall) -> None:
        self._methods = methods(engine)
        self._infer = infer

    def __call__(self, connection: CallConnection, stream: Stream, head: CallHead) -> Call:
        """The object that answers a call."""
        path = head.path
        if path == _INFER:
            return self._infer(connection, stream, head)
        if path == _STREAM_INFER:
            return StreamInferCall(connection, stream, head)
        method = self._methods.get(path)
        if method is not None:
            return MethodCall(connection, stream, head, method)
        return UnknownCall(connection, stream, head)


class CompressingDispatch(Dispatch):
    """Makes the calls of a server that compresses responses of inference.

    Args:
        engine: handles the requests.
        infer: makes calls of ``ModelInfer`` whose clients want no compression.
        level: ``low``, ``medium`` or ``high``.
    """

    def __init__(self, engine: InferenceEngine, infer: MakeCall, level: str) -> None:
        super().__init__(engine, infer)
        self._level = level

    def __call__(self, connection: CallConnection, stream: Stream, head: CallHead) -> Call:
        """The object that answers a call."""
        kind = _COMPRESSED.get(head.path)
        coding = response_coding(self._level, head.metadata.get(b"grpc-accept-encoding", b"")) if kind else None
        if kind is None or coding is None:
            return super().__call__(connection, stream, head)
        call = kind(connection, stream, head)
        call.coding, call.level = coding, self._level
        return call


class UnknownCall(Call):
    """A call of a method that does not exist; it is over before its first message."""

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead) -> None:
        super().__init__(connection, stream, head)
        message = f"this server has no method {head.path[:200]}"
        refusals = connection.frontend.engine.refusals
        refusals.add(PROTOCOL, RefusalReason.UNKNOWN_ROUTE, message, sender=connection.address)
        self.fail(CallError(GrpcStatus.UNIMPLEMENTED, message))
