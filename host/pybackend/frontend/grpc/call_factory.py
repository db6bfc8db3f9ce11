"""Makes the calls of a port: each gets the handler of its method."""

from abc import ABC, abstractmethod

from pybackend.engine.door import Door
from pybackend.frontend.grpc.answer import chosen_compression
from pybackend.frontend.grpc.call import GrpcCall, Handler
from pybackend.frontend.grpc.errors import CallError
from pybackend.frontend.grpc.fast_path import GrpcFastPath
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead, CallRefusal, timeout_of
from pybackend.frontend.grpc.infer_handler import InferHandler
from pybackend.frontend.grpc.length_prefixed import PREFIX, PREFIX_BYTES
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.grpc.stream_handler import StreamInferHandler
from pybackend_http2 import RequestHead, Stream, StreamReceiver

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
_NO_HANDLER = Handler()


class CallFactory(ABC):
    """Makes the calls of one port. Those of inference are alike in all; subclasses decide who answers the others."""

    def __init__(self, frontend: GrpcFrontend[Door]) -> None:
        self._level = frontend.settings.compression_level
        self._fast = None if frontend.memory is None else GrpcFastPath(frontend, frontend.memory)

    @abstractmethod
    def begin(self, peer: Peer, stream: Stream, head: CallHead, request: RequestHead) -> StreamReceiver:
        """A call whose head has arrived; it may be over already."""

    def handle_inference(self, call: GrpcCall) -> bool:
        """Give a call of inference its handler; False for any other call."""
        path = call.head.path
        if path == INFER:
            self._compress(call)
            call.handler = InferHandler(call, None if call.compression else self._fast)
        elif path == STREAM_INFER:
            self._compress(call)
            call.handler = StreamInferHandler(call)
        else:
            return False
        return True

    def _compress(self, call: GrpcCall) -> None:
        """Compress a call's responses, if the operator and the client want it."""
        if self._level != "none":
            accepted = call.head.metadata.get(b"grpc-accept-encoding", b"")
            call.compression = chosen_compression(self._level, accepted)

    def begin_known(
        self, peer: Peer, stream: Stream, head: RequestHead, data: bytes, start: int, stop: int
    ) -> GrpcCall | None:
        """A whole call with a known head. None if its body, between two offsets, must take the ordinary way."""
        call_head: CallHead = head.user_data  # type: ignore[assignment]
        if self._fast is not None and stop - start >= PREFIX_BYTES:
            flag, size = PREFIX.unpack_from(data, start)
            start += PREFIX_BYTES
            known = None if flag or size != stop - start else self._fast.known(data, start, stop)
            if known is not None:
                timeout_s = call_head.timeout_s
                if stream.fields_apart:
                    try:
                        timeout_s = timeout_of(call_head, stream.fields_apart)
                    except CallError:
                        return None
                call = GrpcCall(peer, stream, call_head, timeout_s)
                call.handler = handler = InferHandler(call, self._fast)
                if handler.submit_known(known):
                    return call
                call.handler = _NO_HANDLER  # they refer to each other
                call.forget_deadline()
        call_head.takes_shortcut = False
        return None


def begin_call(peer: Peer, stream: Stream, head: CallHead) -> tuple[GrpcCall, CallRefusal | None]:
    """A call, and its end by its head if it cannot be served."""
    refusal, timeout_s = head.refusal, head.timeout_s
    if stream.fields_apart and refusal is None:
        try:
            timeout_s = timeout_of(head, stream.fields_apart)
        except CallError as error:
            refusal = CallRefusal.by(error.status, error.message)
    return GrpcCall(peer, stream, head, timeout_s), refusal
