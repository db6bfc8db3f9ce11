"""The calls of a port: each gets the handler of its method."""

from pybackend.engine.answers import RefusalReason
from pybackend.frontend.grpc.call import Call
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.frontend.grpc.head import CallHead, Refusal
from pybackend.frontend.grpc.infer_table import InferTable, begin_call
from pybackend.frontend.grpc.method_handler import MethodHandler
from pybackend.frontend.grpc.methods import methods
from pybackend.frontend.grpc.peer import Peer
from pybackend.frontend.http2 import RequestHead, Stream
from pybackend.protocol.grpc.status import GrpcStatus


class MethodTable(InferTable):
    """Begins the calls of one port."""

    def __init__(self, frontend: GrpcFrontend) -> None:
        super().__init__(frontend)
        self._methods = methods(frontend.engine)

    def begin(self, peer: Peer, stream: Stream, head: CallHead, _request: RequestHead) -> Call:
        """A call whose head has arrived; it may be over already."""
        call, refusal = begin_call(peer, stream, head)
        path = head.path
        if refusal is not None:
            call.refuse(refusal)
        elif self.handle(call):
            pass
        elif path in self._methods:
            call.handler = MethodHandler(call, self._methods[path])
        else:
            message = f"this server has no method {path[:200]}"
            call.refuse(Refusal.by(GrpcStatus.UNIMPLEMENTED, message, RefusalReason.UNKNOWN_ROUTE))
        return call
