"""The fast path of a gRPC port: all that it remembers of recurring calls of ``ModelInfer``, and their way to the engine.

Clients send the same message with other tensors, and perhaps another id or sequence. A known message is submitted at once, without protobuf,
admission and validation, and a small answer is put together from parts that recur. Everything else takes the ordinary way, which
gives the same answers. Without this module (``--no-fast-paths``) all calls do, and the connections of HTTP/2 remember no heads.
"""

from typing import Any, NamedTuple

from pybackend.engine.admission import ClientAdmission, Route
from pybackend.engine.door import Door
from pybackend.frontend.grpc.errors import HEAD, OK_TRAILERS
from pybackend.frontend.grpc.frontend import GrpcFrontend, KnownParts
from pybackend.frontend.grpc.length_prefixed import PREFIX, PREFIX_BYTES
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse, layout_of
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked, has_whole_elements
from pybackend.protocol.grpc.layouts import MessageLayout
from pybackend.protocol.grpc.request import sequence_of
from pybackend.protocol.grpc.response import header_of, id_field, message_format
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, request_like
from pybackend_http2 import AnswerForm, Stream


class Shortcut(NamedTuple):
    """The way of requests with one layout."""

    route: Route
    called: str  # the model's name, as clients send it
    needs_check: bool  # the sizes of the inputs must be checked, and the lengths of strings
    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[Any, ...]
    request: InferenceRequest  # has everything but the id, parameters and the inputs


KnownRequest = tuple[MessageLayout, Shortcut, InferenceRequest]
"""A request that was recognised: the layout of its message, its way, and itself, complete and checked."""


class GrpcFastPath:
    """The fast path of one port."""

    def __init__(self, frontend: GrpcFrontend[Door], memory: KnownParts) -> None:
        self._frontend = frontend
        self._layouts = memory.layouts
        self._headers = memory.headers

    def known(self, data: bytes, start: int, stop: int) -> KnownRequest | None:
        """The request in a message between two offsets.

        None if it is not known, or if something must be noted about each request.
        """
        frontend = self._frontend
        if frontend.request_log.on or frontend.refusing or frontend.engine.tracer.active:
            return None
        found = self._layouts.find(data, start, stop)
        if found is None:
            return None
        layout, request_id, parameters, raw = found
        shortcut: Shortcut | None = layout.user_data
        if shortcut is None:
            return None
        inputs = [*map(InputTensor, shortcut.names, shortcut.datatypes, shortcut.shapes, raw)]
        request = request_like(shortcut.request, inputs, request_id)
        if parameters:
            sequence = sequence_of(parameters)
            if sequence is None:
                return None
            request.correlation_id, request.flags = sequence
        if shortcut.needs_check and not has_whole_elements(request):
            return None
        return layout, shortcut, request

    def answer(self, stream: Stream, response: InferenceResponse) -> bool:
        """Send a result as a whole call's answer, after which its memory may be released. It has no parameters.

        False if nothing was sent: the answer is large, or must wait.
        """
        outputs = response.outputs
        layout, data = layout_of(response, outputs)
        header = self._headers.get(layout) or header_of(response, outputs, layout, self._headers)
        form = header.form
        if form is None:
            if not header.is_small:
                return False
            form = header.form = AnswerForm(HEAD, b"%b" + message_format(header), OK_TRAILERS)
        nbytes = header.nbytes
        identifier = b""
        if response.id:
            identifier = id_field(response.id)
            nbytes += len(identifier)
        parts = (PREFIX.pack(0, nbytes), identifier, *data)
        return stream.respond_in(form, nbytes + PREFIX_BYTES, parts)  # type: ignore[arg-type]  # any buffer can be copied

    def shorten(self, layout: MessageLayout, admission: ClientAdmission, plan: InferPlan) -> None:
        """Make the shortcut for the next requests with a layout, if nothing about this one is special."""
        request = plan.request
        if plan.checked is Checked.NOTHING or plan.output_format is not ALL_BINARY or request.regions is not None:
            return
        route = admission.route()
        if route is None:
            return
        layout.user_data = Shortcut(
            route,
            layout.model_name,
            plan.checked is not Checked.ALL or layout.is_unsized,
            tuple(each.name for each in request.inputs),
            tuple(each.datatype for each in request.inputs),
            tuple(each.shape for each in request.inputs),
            request_like(request, []),
        )
