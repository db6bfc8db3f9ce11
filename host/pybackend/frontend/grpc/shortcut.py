"""The shortcut for calls of ``ModelInfer``: a message that is known but for its id and its tensors is submitted at once.

Nearly all calls of busy clients come this way: no protobuf, no admission, no validation. All others take the ordinary way, which
gives the same answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pybackend.engine.admission import Admission, Route
from pybackend.frontend.grpc.framing import PREFIX, PREFIX_BYTES
from pybackend.frontend.grpc.frontend import GrpcFrontend
from pybackend.inference.request import InferenceRequest
from pybackend.inference.tensor import InputTensor
from pybackend.inference.validation import Checked
from pybackend.protocol.grpc_layouts import MessageLayout
from pybackend.protocol.infer_plan import ALL_BINARY, InferPlan, request_like


class Shortcut(NamedTuple):
    """The way of requests with one layout.

    Attributes:
        route: to the version.
        called: the model's name, as clients send it.
        names: of the inputs.
        datatypes: of the inputs.
        shapes: of the inputs.
        request: has everything but the id and the inputs.
    """

    route: Route
    called: str
    names: tuple[str, ...]
    datatypes: tuple[str, ...]
    shapes: tuple[Any, ...]
    request: InferenceRequest


KnownRequest = tuple[MessageLayout, Shortcut, InferenceRequest]
"""A request that was recognised: the layout of its message, its way, and itself, complete and checked."""


def known_request(frontend: GrpcFrontend, data: bytes, start: int, stop: int) -> KnownRequest | None:
    """The request in the body of a call.

    Args:
        frontend: state shared by all connections.
        data: received bytes.
        start: where the body begins in them.
        stop: where it ends.

    Returns:
        None if the body is not exactly one message that is not compressed, if there is no shortcut for that, or
        if something must be noted about each request.
    """
    if stop - start < PREFIX_BYTES or frontend.watch.on or frontend.closing or frontend.engine.tracer.active:
        return None
    flag, size = PREFIX.unpack_from(data, start)
    start += PREFIX_BYTES
    if flag or size != stop - start:
        return None
    found = frontend.layouts.find(data, start, stop)
    if found is None:
        return None
    layout, request_id, raw = found
    shortcut: Shortcut | None = layout.memo
    if shortcut is None:
        return None
    inputs = [*map(InputTensor, shortcut.names, shortcut.datatypes, shortcut.shapes, raw)]
    return layout, shortcut, request_like(shortcut.request, inputs, request_id)


def shorten(layout: MessageLayout, admission: Admission, plan: InferPlan) -> None:
    """Make the shortcut for the next requests with a layout, if nothing about this one is special."""
    request = plan.request
    if (
        plan.checked is not Checked.ALL
        or plan.output_format is not ALL_BINARY
        or request.regions is not None
        or request.has_options
    ):
        return
    route = admission.route()
    if route is None:
        return
    layout.memo = Shortcut(
        route,
        layout.model_name,
        tuple(each.name for each in request.inputs),
        tuple(each.datatype for each in request.inputs),
        tuple(each.shape for each in request.inputs),
        request_like(request, []),
    )
