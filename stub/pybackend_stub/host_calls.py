"""What a model asks of its host: numbered questions, and the threads that wait for their answers."""

import os
from itertools import count
from typing import Any, Callable, Dict, List, Optional

from pybackend_sdk.error import TritonModelException
from pybackend_stub.channel import HostChannel, HostGone
from pybackend_stub.memory import StubMemory
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_stub.tensor_io import OutputTail
from pybackend_wire.errors import ErrorCode, LocalProtocolError
from pybackend_wire.framing import MAX_METADATA_BYTES
from pybackend_wire.messages import Failure, StubMessage

OnMessage = Callable[["List[Any]", bytearray], bool]
"""Takes a message that belongs to a call, and its frame's tail; True if it was the last one."""


class HostRefusal(Exception):
    """The host does not do what it was asked for.

    Attributes:
        message: why.
        code: what kind of failure.
    """

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class MessageTooLong(TritonModelException):
    """The host takes no message of this length."""


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
        self._open: Dict[int, OnMessage] = {}
        self._pid = os.getpid()

    def ask(self, kind: StubMessage, *fields: Any, tail: "Optional[OutputTail]" = None) -> Any:
        """Send a question and wait for its answer.

        Args:
            kind: of the question.
            fields: what follows its number.
            tail: small tensors that ``fields`` point to.

        Raises:
            HostRefusal: the host says why not.
        """
        question = _Question()

        def on_answer(message: "List[Any]", _tail: bytearray) -> bool:
            _, _, failure, question.value = message
            question.failure = None if failure is None else Failure(*failure)
            self._receiver.finish(question)
            return True

        number = self.open(on_answer)
        try:
            self.send((kind, number, *fields), tail)
        except BaseException:
            self.close(number)
            raise
        self._receiver.wait(question)
        if question.failure is not None:
            raise HostRefusal(question.failure.message, ErrorCode(question.failure.code))
        return question.value

    def tell(self, kind: StubMessage, *fields: Any) -> None:
        """Send what needs no answer."""
        self.send((kind, *fields))

    def open(self, on_message: OnMessage) -> int:
        """A number for a call; what the host says about it goes to ``on_message``, in the thread that reads."""
        number = next(self._numbers)
        self._open[number] = on_message
        return number

    def close(self, number: int) -> None:
        """Forget a call that the host has not heard of."""
        self._open.pop(number, None)

    def send(self, message: Any, tail: "Optional[OutputTail]" = None) -> None:
        """Send one message, and the input memory that was let go since the last one.

        Raises:
            MessageTooLong: nothing is sent.
            TritonModelException: this process is a fork of the model's, or the server is gone.
        """
        if os.getpid() != self._pid:
            raise TritonModelException("A process that the model has forked cannot use the server's services.")
        released = self._memory.take_released()
        freed: List[Any] = [(StubMessage.FREE_INPUT, released)] if released else []
        try:
            try:
                self._channel.send([*freed, message], () if tail is None else tail.take())
            except LocalProtocolError:
                if freed:
                    self._channel.send(freed)
                raise MessageTooLong(
                    f"the texts in it are too long: all but tensors may have {MAX_METADATA_BYTES} bytes together"
                ) from None
        except HostGone:
            raise TritonModelException("The server is gone.") from None

    def on_message(self, message: "List[Any]", tail: bytearray) -> None:
        """An ANSWER or a REPLY."""
        number = message[1]
        on_message = self._open.get(number)
        if on_message is not None and on_message(message, tail):
            self._open.pop(number, None)
