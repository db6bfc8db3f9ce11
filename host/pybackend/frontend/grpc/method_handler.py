"""Calls of methods other than inference: a function answers each message."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pybackend.errors import InferenceError
from pybackend.frontend.grpc.call import GrpcCall, Handler
from pybackend.frontend.grpc.errors import INTERNAL, CallError
from pybackend.frontend.grpc.length_prefixed import too_large_error
from pybackend.modelconfig.protobuf.messages import message_class
from pybackend.protocol.grpc.message import check_field_count
from pybackend.protocol.grpc.status import GrpcStatus

log = logging.getLogger(__name__)

_ON_LOOP_BYTES = 64 * 1024
"""A longer message, such as a load request with files, is read on a thread."""


SMALL_MESSAGE_BYTES = 8 * 1024
"""The limit for requests that only name or switch something: honest ones have a few hundred bytes."""


class UnaryMethod(NamedTuple):
    """A method that is answered by a coroutine."""

    request: str  # full name of the request's message
    answer: Callable[[Any], Awaitable[Any]]  # makes the response's message of the request's
    streams: bool = False  # the method takes and gives any number of messages
    most_bytes: int = SMALL_MESSAGE_BYTES  # the limit of a message
    # raises an error if the server takes no such calls now. A small one is read all the same: it may be an exception.
    check: Callable[[], None] | None = None
    # raises an error if a message has more parts than the method needs
    check_fields: Callable[[bytes], None] = check_field_count

    def read(self, message: bytes) -> Any:
        """The request's message; an error if the bytes are no such message, or if it has too many parts."""
        self.check_fields(message)
        try:
            return message_class(self.request).FromString(message)
        except (DecodeError, UnicodeDecodeError) as error:
            text = f"the request cannot be read as a {self.request} message: {error}"
            raise CallError(GrpcStatus.INTERNAL, text) from None


class MethodHandler(Handler):
    """Answers a call of a :class:`UnaryMethod`."""

    def __init__(self, call: GrpcCall, method: UnaryMethod) -> None:
        self._call = call
        self._method = method
        self.most_bytes = method.most_bytes
        self._count = 0
        self._waiting: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        if method.check is not None:
            try:
                method.check()
            except InferenceError as error:
                # A small message is read all the same: it may name a model for which the rule does not hold.
                self.most_bytes, self.refusal = SMALL_MESSAGE_BYTES, CallError.of(error)

    def accepts_messages(self) -> bool:
        """Messages are answered one after the other."""
        return not self.is_working()

    def on_message(self, message: bytes) -> None:
        if len(message) > self.most_bytes:
            raise too_large_error(len(message), self.most_bytes, self.refusal)
        self._count += 1
        if self._count > 1 and not self._method.streams:
            raise CallError(GrpcStatus.INTERNAL, f"{self._call.head.path} takes one message, and there is another")
        if len(message) > _ON_LOOP_BYTES:
            self.kept_bytes = len(message)
        # A read may have calls of a thousand streams: each of them begins in another turn of the loop.
        self._waiting = message
        self._call.peer.slices.add(self._begin)

    def _begin(self) -> bool:
        message, self._waiting = self._waiting, None
        if message is not None:
            self._task = self._call.peer.loop.create_task(self._answer(message))
        return False

    def on_half_close(self) -> None:
        """The client sends no further messages."""
        if self._method.streams:
            self._call.finish()
        elif not self._count:
            raise CallError(GrpcStatus.INTERNAL, f"{self._call.head.path} takes one message, and there is none")

    def is_working(self) -> bool:
        """A message is being answered, or waits for its turn."""
        return self._task is not None or self._waiting is not None

    def needs_message(self) -> bool:
        """True before the request, unless the method takes any number of them."""
        return not self._count and not self._method.streams

    def on_cancelled(self) -> None:
        task, self._task, self._waiting = self._task, None, None
        if task is not None:
            task.cancel()

    async def _answer(self, message: bytes) -> None:
        failure: CallError | None = None
        try:
            large = len(message) > _ON_LOOP_BYTES
            request = await asyncio.to_thread(self._method.read, message) if large else self._method.read(message)
            answer = (await self._method.answer(request)).SerializeToString()
        except CallError as error:
            failure = error
        except InferenceError as error:
            failure = CallError.of(error)
        except Exception:  # the client gets an answer
            log.exception("A gRPC call to %s failed", self._call.head.path)
            failure = INTERNAL
        call = self._call
        if call.is_over:
            return
        self._task = None
        self.kept_bytes = 0
        if failure is not None:
            call.fail(failure)
        elif self._method.streams:
            call.open_answer().send(answer)
        else:
            call.reply((answer,), len(answer))
        call.go_on()
        if call.peer.frontend.refusing:
            call.shut_down()
        call.peer.flush_soon()
