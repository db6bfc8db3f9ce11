"""The calls of a port: each gets the handler of its method."""

from __future__ import annotations

from pybackend.engine.answers import RefusalReason
from pybackend.frontend.grpc.answer import chosen_compression
from pybackend.frontend.grpc.call import Call, Handler
from pybackend.frontend.grpc.fast_path import FastPath
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead, Refusal
from pybackend.frontend.grpc.infer_handler import InferHandler
from pybackend.frontend.grpc.length_prefixed import PREFIX, PREFIX_BYTES
from pybackend.frontend.grpc.method_handler import MethodHandler
from pybackend.frontend.grpc.methods import INFERENCE, methods
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.grpc.stream_handler import StreamInferHandler
from pybackend.frontend.http2 import RequestHead, Stream
from pybackend.protocol.grpc.status import GrpcStatus

_INFER = f"/{INFERENCE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE}/ModelStreamInfer"
_NO_HANDLER = Handler()


class MethodTable:
    """Begins the calls of one port."""

    def __init__(self, frontend: GrpcFrontend) -> None:
        self._methods = methods(frontend.engine)
        self._level = frontend.settings.compression_level
        self._fast = None if frontend.memory is None else FastPath(frontend, frontend.memory)

    def begin(self, peer: Peer, stream: Stream, head: CallHead, _request: RequestHead) -> Call:
        """A call whose head has arrived; it may be over already."""
        call = Call(peer, stream, head)
        path = head.path
        if head.refusal is not None:
            call.refuse(head.refusal)
        elif path == _INFER:
            self._compress(call)
            call.handler = InferHandler(call, None if call.compression else self._fast)
        elif path == _STREAM_INFER:
            self._compress(call)
            call.handler = StreamInferHandler(call)
        elif path in self._methods:
            call.handler = MethodHandler(call, self._methods[path])
        else:
            message = f"this server has no method {path[:200]}"
            call.refuse(Refusal.by(GrpcStatus.UNIMPLEMENTED, message, RefusalReason.UNKNOWN_ROUTE))
        return call

    def _compress(self, call: Call) -> None:
        """Compress a call's responses, if the operator and the client want it."""
        if self._level != "none":
            accepted = call.head.metadata.get(b"grpc-accept-encoding", b"")
            call.compression = chosen_compression(self._level, accepted)

    def begin_known(
        self, peer: Peer, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int
    ) -> Call | None:
        """A whole call with a known head. None if its body, between two offsets, must take the ordinary way."""
        call_head: CallHead = head.user_data  # type: ignore[assignment]
        if self._fast is not None and stop - start >= PREFIX_BYTES:
            flag, size = PREFIX.unpack_from(data, start)
            start += PREFIX_BYTES
            known = None if flag or size != stop - start else self._fast.known(data, start, stop)
            if known is not None:
                call = Call(peer, stream, call_head)
                call.handler = handler = InferHandler(call, self._fast)
                if handler.submit_known(known):
                    return call
                call.handler = _NO_HANDLER  # they refer to each other
                call.forget_deadline()
        call_head.takes_shortcut = False
        return None
