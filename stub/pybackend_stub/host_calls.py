"""Questions from a model to its host: their numbers, and the threads that wait for answers."""

from itertools import count
from typing import Any, Callable, Dict, List, Optional, Union

from pybackend_sdk.error import TritonModelException
from pybackend_stub.channel import HostChannel, HostGone
from pybackend_stub.memory import StubMemory
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_stub.tensor_io import OutputTail
from pybackend_wire.errors import ErrorCode, LocalProtocolError
from pybackend_wire.framing import MAX_METADATA_BYTES
from pybackend_wire.host_messages import Answer, Reply
from pybackend_wire.messages import Failure
from pybackend_wire.stub_messages import Call, CancelCall, FreeInput, Question, encoded

FromModel = Union[Question, Call, CancelCall]
"""A message that the model's code triggers."""

OnReply = Callable[[Any, bytearray], bool]
"""Receives an :class:`Answer` or a :class:`Reply` with its frame's tail; returns True if it was the last one."""


class HostRefusal(Exception):
    """The host refuses a request from the model.

    Attributes:
        message: the reason.
        code: the kind of failure.
    """

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class MessageTooLong(TritonModelException):
    """The message is longer than the host accepts."""


class _Question(Waiter):
    __slots__ = ("failure", "value")

    def __init__(self) -> None:
        super().__init__()
        self.value: Any = None
        self.failure: Optional[Failure] = None


class HostCalls:
    """Sends questions from any thread."""

    def __init__(self, channel: HostChannel, receiver: Receiver, memory: StubMemory) -> None:
        self._channel = channel
        self._receiver = receiver
        self._memory = memory
        self._numbers = count(1)
        self._open: Dict[int, OnReply] = {}

    def ask(self, make: "Callable[[int], Question]", tail: "Optional[OutputTail]" = None) -> Any:
        """Send a question and wait for its answer.

        Args:
            make: makes the question from its number.
            tail: small tensors that the question refers to.

        Raises:
            HostRefusal: the host refused.
        """
        question = _Question()

        def on_answer(answer: Answer, _tail: bytearray) -> bool:
            question.value = answer.value
            question.failure = None if answer.failure is None else Failure(*answer.failure)
            self._receiver.finish(question)
            return True

        number = self.open(on_answer)
        try:
            self.send(make(number), tail)
        except BaseException:
            self.close(number)
            raise
        self._receiver.wait(question)
        if question.failure is not None:
            raise HostRefusal(question.failure.message, ErrorCode(question.failure.code))
        return question.value

    def open(self, on_message: OnReply) -> int:
        """Return a number for a new call; messages about it go to ``on_message``, in the thread that reads."""
        number = next(self._numbers)
        self._open[number] = on_message
        return number

    def close(self, number: int) -> None:
        """Forget a call that was not sent."""
        self._open.pop(number, None)

    def send(self, message: FromModel, tail: "Optional[OutputTail]" = None) -> None:
        """Send one message, after the input memory released since the last one.

        Raises:
            MessageTooLong: the message is too long; it was not sent.
            TritonModelException: this process is a fork of the model's, or the server is gone.
        """
        if self._channel.is_inherited():
            raise TritonModelException("A process that the model has forked cannot use the server's services.")
        released = self._memory.take_released()
        freed: List[Any] = [encoded(FreeInput(released))] if released else []
        try:
            try:
                self._channel.send([*freed, encoded(message)], () if tail is None else tail.take())
            except LocalProtocolError:
                if freed:
                    self._channel.send(freed)
                raise MessageTooLong(
                    f"its texts are too long: all parts but tensors may have {MAX_METADATA_BYTES} bytes together"
                ) from None
        except HostGone:
            raise TritonModelException("The server is gone.") from None

    def is_inherited(self) -> bool:
        """Whether this process is a fork of the model's."""
        return self._channel.is_inherited()

    def on_message(self, message: "Union[Answer, Reply]", tail: bytearray) -> None:
        """Pass on an answer from the host."""
        on_message = self._open.get(message.call)
        if on_message is not None and on_message(message, tail):
            self._open.pop(message.call, None)
