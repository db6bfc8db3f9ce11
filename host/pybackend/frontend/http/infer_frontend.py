"""The state and the steps that all infer requests over HTTP share.

Connections answer most infer requests themselves; ASGI routes answer ``generate``, the ports for clouds, and
applications that are mounted under another server. Opening a body, completing a request and counting a refusal are
written here once.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from pybackend.engine.admission import ClientAdmission
from pybackend.engine.door import Door
from pybackend.engine.engine import InferenceEngine
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import ForwardedHeaders
from pybackend.frontend.access.restrictions import Headers
from pybackend.frontend.flow import ClientBytes, ClientMemory
from pybackend.frontend.http.body import Body
from pybackend.frontend.http.content_coding import request_coding
from pybackend.frontend.http.guard import HttpGuard
from pybackend.frontend.http.infer_body import HTTP_CLIENT, CompressedBody, StreamedBody
from pybackend.frontend.http.request_reader import values_of
from pybackend.frontend.request_log import ContextFields, trace_context
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.limits import BodyLimits
from pybackend.protocol.plan_cache import PlanCaches

_LENGTH = b"inference-header-content-length"
_FIELDS = frozenset({_LENGTH, b"content-encoding", b"accept-encoding", b"traceparent", b"tracestate"})


_Engine_co = TypeVar("_Engine_co", bound=Door, covariant=True)


class HeadFields(NamedTuple):
    """The fields of an infer request that matter here."""

    header_length: bytes | None  # says how long the JSON part is; None if it is missing
    encodings: bytes  # how the body is compressed, several fields joined by commas; empty if it is not
    accepted: bytes  # how the answer may be compressed, likewise; empty if the client does not say
    context: ContextFields | None
    repeats_length: bool  # there are several fields that say how long the JSON part is

    def check(self) -> None:
        """Refuse a request whose parts nobody can tell apart, because it has several lengths of its JSON part."""
        if self.repeats_length:
            raise InferenceError(
                "the request has several fields Inference-Header-Content-Length: send one", ErrorCode.INVALID_ARG
            )


def read_fields(headers: Iterable[tuple[bytes, bytes]]) -> HeadFields:
    """Find the fields of a request."""
    found = values_of(headers, _FIELDS)
    lengths, parents = found.get(_LENGTH, ()), found.get(b"traceparent", ())
    return HeadFields(
        lengths[0] if lengths else None,
        b",".join(found.get(b"content-encoding", ())),
        b",".join(found.get(b"accept-encoding", ())),
        trace_context(parents, found.get(b"tracestate", ())) if parents else None,
        len(lengths) > 1,
    )


class InferFrontend(Generic[_Engine_co]):
    """The state, shared by connections and routes."""

    def __init__(
        self,
        engine: _Engine_co,
        limits: BodyLimits,
        client_memory: ClientMemory,
        *,
        forwards: ForwardedHeaders | None = None,
        guard: HttpGuard | None = None,
        fast_paths: bool = True,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.client_memory = client_memory
        self.answers = engine.answers[HTTP_CLIENT.protocol]
        self.forwards = forwards  # the headers that become request parameters; None for none
        self.guard = guard  # of the port; None if all calls may pass
        self.plans = PlanCaches() if fast_paths else None  # of earlier requests; None if nothing is remembered

    def body(
        self, admission: ClientAdmission, fields: HeadFields, nbytes: int | None, flow: ClientBytes
    ) -> Body[InferPlan]:
        """Receives a body that is large, compressed, or of unknown size.

        ``nbytes`` is the announced size, None if there is none. When the model has no memory left, a slow client is
        dropped.

        Raises:
            InferenceError: the fields are malformed, or announce too large a body.
        """
        coding = request_coding(fields.encodings) if fields.encodings else None
        length = None if coding is not None else nbytes
        body = StreamedBody(
            admission, fields.header_length, length, self.limits, partial(flow.drop_other_sender, admission)
        )
        return body if coding is None else CompressedBody(body, coding, self.limits)

    def forwarded(self, headers: Headers) -> Mapping[str, str] | None:
        """The parameters that the headers of a request become; None for none.

        Raises InferenceError: one must not be forwarded.
        """
        return None if self.forwards is None else self.forwards.of(headers)

    def refused(self, model: str, error: InferenceError, address: str) -> None:
        """Count a request that no model accepted; ``model`` is its name in the request, or its full name."""
        self.engine.refusals.add_error(HTTP_CLIENT.protocol, model, error, address)


RouteFrontend = InferFrontend[InferenceEngine]
"""That of routes, which also ask the engine about its models."""
