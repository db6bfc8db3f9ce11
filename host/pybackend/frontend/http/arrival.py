"""The body of a request that an ASGI route reads.

It is bounded, counted and paced like the bodies that connections read themselves.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from pybackend.engine.admission import Sender
from pybackend.engine.engine import ModelAdmission
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.access.forwarded_headers import add_parameters
from pybackend.frontend.flow import LOWEST_RATE_BYTES_PER_S, ClientBytes, Transfer
from pybackend.frontend.http.body import Body, BoundedBody, RouteLimit, WholeBody
from pybackend.frontend.http.content_coding import request_coding
from pybackend.frontend.http.infer_frontend import RouteFrontend, read_fields
from pybackend.frontend.http.routes import client_address, model_name, version
from pybackend.frontend.request_log import RECORD, begin_trace
from pybackend.inference.request import InferenceRequest
from pybackend.observability.tracing.request_trace import RequestTrace

_SMALL = RouteLimit(8 * 1024)
"""For requests that only name or switch something: honest ones have a few hundred bytes."""

_LONGEST_LENGTH_DIGITS = 18

_T = TypeVar("_T")


class SlowSenderError(InferenceError):
    """The client sent too slowly: the rest of its body is not read, so the connection must be closed."""


class Arrival:
    """The arrival of one body, whose bytes count until it is closed.

    The admission is to the model whose memory takes the tensors; other requests have none.
    """

    unread = ()

    def __init__(self, frontend: RouteFrontend, request: Request, admission: ModelAdmission | None = None) -> None:
        self.flow = ClientBytes(self, frontend.client_memory)
        self._request = request
        self._admission = admission
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._body: Body[Any] | None = None
        self._is_working = False
        self._dropped: SlowSenderError | None = None

    def close(self) -> None:
        """Its bytes count no more."""
        self.flow.close()

    async def whole(self, limit: RouteLimit) -> bytes:
        """The whole body, as it is; errors are those of :meth:`bounded`."""
        return await self.bounded(WholeBody(limit))

    async def bounded(self, body: BoundedBody[_T]) -> _T:
        """The meaning of a body, whose head may already say that it is too large.

        Raises:
            InferenceError: it is compressed, too large or invalid, there is no memory for it, or it comes too slowly.
        """
        if request_coding(read_fields(self._request.headers.raw).encodings) is not None:
            raise InferenceError(
                "Unsupported compression type: only infer takes compressed bodies. Send this one without content-encoding",
                ErrorCode.UNSUPPORTED,
            )
        body.limit.check(self.content_length or 0)
        return await self.read(body)

    async def read(self, body: Body[_T]) -> _T:
        """The meaning of a body, once it has arrived. Its bytes count until this object is closed.

        Raises:
            InferenceError: the body is invalid, there is no memory for it, or it comes too slowly.
        """
        self._body = body
        self.flow.begin_sending()
        try:
            with self._reading():
                async for piece in self._request.stream():
                    self.flow.received_bytes += len(piece)
                    if piece:
                        body.feed(piece)
                        await self._work(body)
            body.complete()
            await self._work(body)
            return body.finish()
        except BaseException:  # cancelled, too: the body holds memory of a model
            body.release()
            raise
        finally:
            self.flow.end_sending()
            self._body = None

    @property
    def content_length(self) -> int | None:
        """The size of the body; None if it is sent in chunks."""
        text = self._request.headers.get("content-length")
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_LENGTH_DIGITS:
            raise InferenceError("Content-Length is not a number of bytes", ErrorCode.INVALID_ARG)
        return int(text)

    @property
    def arriving(self) -> Iterable[ModelAdmission]:
        """The admission, while tensors arrive in the model's memory."""
        return () if self._admission is None or self._timer is None else (self._admission,)

    def drop(self) -> None:
        """Give up the body of a client that is too slow."""
        if self._body is not None:
            self._body.release()
        if self._task is not None and self._dropped is None:
            message = (
                f"the body of this request arrives at less than {LOWEST_RATE_BYTES_PER_S} bytes a second"
                if self.flow.pace.has_stalled
                else "the body of this request arrives too slowly, and the server needs the memory for others: send it again"
            )
            self._dropped = SlowSenderError(message, ErrorCode.UNAVAILABLE)
            self._task.cancel()

    # Reading

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """While this lasts, the client's pace is measured, and a client that is dropped gets an error."""
        self._task = asyncio.current_task()
        assert self._task is not None
        self._timer = self._task.get_loop().call_later(1, self._tick)
        try:
            yield
        except asyncio.CancelledError:
            if self._dropped is None:
                raise
            self._task.uncancel()
        except ClientDisconnect:
            raise InferenceError("the client has disconnected", ErrorCode.CANCELLED) from None
        finally:
            self._timer.cancel()
            self._timer = self._task = None
            self.flow.pace.rest()
        if self._dropped is not None:
            raise self._dropped

    def _tick(self) -> None:
        self.flow.measure(1, None if self._is_working else Transfer.SEND, 0)
        if self._dropped is None:
            self._timer = asyncio.get_running_loop().call_later(1, self._tick)

    async def _work(self, body: Body[Any]) -> None:
        """Do the pending work, in turns with other requests."""
        self.flow.hold(body.private_bytes)
        self._is_working = body.work is not None
        while body.step():
            self.flow.hold(body.private_bytes)
            await asyncio.sleep(0)
        self._is_working = False
        self.flow.hold(body.private_bytes)


@contextmanager
def admitted(frontend: RouteFrontend, request: Request, sender: Sender, name: str = "") -> Iterator[ModelAdmission]:
    """The admission of a request to the model of this name, or the one in its path.

    If the request is refused in this context, that is counted.
    """
    name = name or model_name(request)
    try:
        admission = frontend.engine.open(name, version(request), sender)
        name = admission.full_name
        yield admission
    except InferenceError as error:
        frontend.refused(name, error, client_address(request))
        raise


def begin_request(
    frontend: RouteFrontend,
    request: Request,
    admission: ModelAdmission,
    read: InferenceRequest,
    forwarded: Mapping[str, str] | None,
    *,
    sends: bool = True,
) -> RequestTrace | None:
    """Add to a request that has arrived what its head says: the ``forwarded`` headers, and its names in the log.

    Returns its trace, None if there is none; with ``sends``, the caller calls :meth:`RequestTrace.sent`.
    """
    if forwarded is not None:
        add_parameters(read, forwarded)
    if RECORD in request.scope:
        request.scope[RECORD].asks(admission.model_name, admission.model_version, read.id)
    context = read_fields(request.headers.raw).context
    return begin_trace(frontend.engine.tracer, read, admission.full_name, "HTTP", context, sends=sends)


async def small_body(frontend: RouteFrontend, request: Request) -> bytes:
    """The body of a request that only names or switches something; errors are those of :meth:`Arrival.whole`."""
    with closing(Arrival(frontend, request)) as arrival:
        return await arrival.whole(_SMALL)
