"""The body of a request that an ASGI route reads. It is bounded, counted and paced like the bodies that connections read themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from pybackend.engine.admission import Admission
from pybackend.errors import ErrorCode, InferenceError
from pybackend.frontend.http.compressed_body import Body
from pybackend.frontend.http.content_coding import refuse_compressed
from pybackend.frontend.http.head_fields import HeadFields, read_fields
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.pace import LOWEST_RATE_BYTES_PER_S, Pace
from pybackend.protocol.infer_plan import InferPlan
from pybackend.protocol.steps import Steps

log = logging.getLogger(__name__)

SMALL_BODY_BYTES = 8 * 1024
"""The limit for requests that only name or switch something: honest ones have a few hundred bytes."""

_UNCOUNTED_BYTES = 64 * 1024
"""Up to so many bytes of a body do not count, as on connections that read it themselves."""

_LONGEST_LENGTH_DIGITS = 18

_T = TypeVar("_T")


class SlowSenderError(InferenceError):
    """The client sent too slowly: the rest of its body is not read, so the connection must be closed."""


class Arrival:
    """The arrival of one body; a context in which the bytes that it holds are counted.

    Args:
        frontend: has the account of these bytes, and knows the slow senders.
        request: the request.
        admission: to the model whose memory takes the tensors; None for other requests.
    """

    unread = ()

    def __init__(self, frontend: InferFrontend, request: Request, admission: Admission | None = None) -> None:
        self.pace = Pace()
        self._frontend = frontend
        self._request = request
        self._admission = admission
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._body: Body | None = None
        self._received_bytes = self._received_then = self._kept_bytes = 0
        self._is_working = False
        self._dropped: SlowSenderError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._frontend.kept.claim(self, 0)

    async def whole(self, most_bytes: int, advice: str = "") -> bytes:
        """The whole body.

        Args:
            most_bytes: the limit of its size.
            advice: for clients that exceed it: where large data belongs.

        Raises:
            InferenceError: it is compressed or too large, there is no memory for it, or it comes too slowly.
        """
        refuse_compressed(self.fields.encodings)
        announced = self.content_length
        if announced is not None:
            _check_size(announced, most_bytes, advice)
        body = bytearray()
        with self._reading():
            async for piece in self._request.stream():
                _check_size(len(body) + len(piece), most_bytes, advice)
                self._received_bytes += len(piece)
                body += piece
                self._keep(len(body))
        return bytes(body)

    async def plan(self, body: Body) -> InferPlan:
        """The infer request in the body.

        Args:
            body: receives the bytes; it is released if there is no request.

        Raises:
            InferenceError: the request is invalid, there is no memory for it, or it comes too slowly.
        """
        self._body = body
        self._frontend.senders.add(self)
        try:
            with self._reading():
                async for piece in self._request.stream():
                    self._received_bytes += len(piece)
                    if piece:
                        body.feed(piece)
                        await self._work(body)
            body.complete()
            await self._work(body)
            return body.finish()
        except BaseException:
            body.release()
            raise
        finally:
            self._frontend.senders.discard(self)
            self._body = None

    @property
    def fields(self) -> HeadFields:
        """The fields of the request that matter to infer."""
        return read_fields(self._request.headers.raw)

    @property
    def content_length(self) -> int | None:
        """The size of the body; None if it is sent in chunks."""
        text = self._request.headers.get("content-length")
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_LENGTH_DIGITS:
            raise InferenceError("Content-Length is not a number of bytes", ErrorCode.INVALID_ARG)
        return int(text)

    def drop_slowest(self) -> bool:
        """Disconnect the slowest of the slow clients whose bodies hold memory that this one needs; False if none does."""
        return self._frontend.senders.drop_slowest(self, self._admission)

    # As seen by those who look for memory

    def holds_memory_for(self, other: Admission | None) -> bool:
        """True while the body arrives and holds leased memory that the other request could use."""
        own = self._admission
        if own is None or other is None or self._timer is None:
            return False
        return own.holds_memory and own.shares_memory_with(other)

    def make_room(self) -> None:
        """Give up a slow client's body, because others need the memory."""
        log.info("Closing the connection of a slow client: others need the memory that is buffered for it.")
        self._drop(
            "the body of this request arrives too slowly, and the server needs the memory for others: send it again"
        )

    def _drop(self, message: str) -> None:
        if self._body is not None:
            self._body.release()
        if self._task is not None and self._dropped is None:
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
            self.pace.rest()
        if self._dropped is not None:
            raise self._dropped

    def _tick(self) -> None:
        assert self._timer is not None
        moved, self._received_then = self._received_bytes - self._received_then, self._received_bytes
        if self._is_working:
            self.pace.rest()
        else:
            self.pace.advance(1, moved)
        if self.pace.has_stalled:
            self._drop(f"the body of this request arrives at less than {LOWEST_RATE_BYTES_PER_S} bytes a second")
            return
        self._timer = asyncio.get_running_loop().call_later(1, self._tick)

    def _keep(self, nbytes: int) -> None:
        """Count the bytes that are held outside of models' memory.

        Raises:
            InferenceError: UNAVAILABLE; the server's limit is reached.
        """
        if nbytes <= _UNCOUNTED_BYTES and not self._kept_bytes:
            return
        kept = self._frontend.kept
        if not kept.claim(self, nbytes):
            raise kept.error(nbytes - self._kept_bytes)
        self._kept_bytes = nbytes

    async def _work(self, body: Body) -> None:
        """Do the pending work, in turns with other requests."""
        self._keep(body.private_bytes)
        if body.work is None:
            return
        self._is_working = True
        for _ in body.work:
            self._keep(body.private_bytes)
            await asyncio.sleep(0)
            if body.work is None:
                return  # it was given up
        body.work = None
        self._is_working = False
        self._keep(body.private_bytes)


async def small_body(frontend: InferFrontend, request: Request) -> bytes:
    """The body of a request that only names or switches something.

    Raises:
        InferenceError: as :meth:`Arrival.whole`.
    """
    with Arrival(frontend, request) as arrival:
        return await arrival.whole(SMALL_BODY_BYTES)


async def done(steps: Steps[_T]) -> _T:
    """The result of work in steps, done in turns with other requests."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)


def _check_size(nbytes: int, most_bytes: int, advice: str) -> None:
    if nbytes > most_bytes:
        raise InferenceError(
            f"the body exceeds {most_bytes} bytes, the most that this route accepts{advice and f': {advice}'}",
            ErrorCode.INVALID_ARG,
        )
