"""Questions from a model to its host, about metrics and other models, and the threads that wait for answers."""

from contextlib import suppress
from itertools import count
from math import isfinite
from typing import Any, Callable, Dict, List, Optional, Union

from pybackend_sdk.error import TritonModelException, printable
from pybackend_sdk.metrics import metric_failure
from pybackend_sdk.tensor import Tensor
from pybackend_stub.channel import HostChannel, HostGone, Unsent
from pybackend_stub.memory import StubMemory
from pybackend_stub.receiver import Receiver, Waiter
from pybackend_stub.results import AnswerQueue
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter
from pybackend_wire.errors import ErrorCode, LocalProtocolError
from pybackend_wire.framing import MAX_METADATA_BYTES
from pybackend_wire.host_messages import Answer, Reply
from pybackend_wire.messages import Failure, MetricChange
from pybackend_wire.stub_messages import (
    Call,
    CancelCall,
    ChangeMetric,
    DropMetric,
    FreeInput,
    IsModelReady,
    LoadModel,
    NewFamily,
    NewMetric,
    Question,
    ReadMetric,
    UnloadModel,
    encoded,
)

FromModel = Union[Question, Call, CancelCall]
"""A message that the model's code triggers."""

OnReply = Callable[[Any, bytearray], bool]
"""Receives an :class:`Answer` or a :class:`Reply` with its frame's tail; returns True if it was the last one."""


class HostRefusal(Exception):
    """The host refuses a request from the model."""

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

    def __init__(self, channel: HostChannel, receiver: Receiver, memory: StubMemory, answers: AnswerQueue) -> None:
        self._channel = channel
        self._answers = answers
        self._receiver = receiver
        self._memory = memory
        self._numbers = count(1)
        self._open: Dict[int, OnReply] = {}

    def ask(self, make: "Callable[[int], Question]", tail: "Optional[OutputTail]" = None) -> Any:
        """Send a question and wait for its answer."""
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

    @property
    def are_open(self) -> bool:
        """Whether anything is unanswered."""
        return bool(self._open)

    def close(self, number: int) -> None:
        self._open.pop(number, None)

    def call(self, call: Call, tail: OutputTail) -> None:
        """Send a call just after the answers that wait: the calling model may wait for long. See :meth:`send`."""
        with self._answers.lock:
            self.send(call, tail, self._answers.take())

    def send(self, message: FromModel, tail: "Optional[OutputTail]" = None, answers: "Optional[Unsent]" = None) -> None:
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
                self._channel.send([*freed, encoded(message)], () if tail is None else tail.take(), answers)
            except LocalProtocolError:
                if answers is not None:
                    self._channel.send(*answers)
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
        on_message = self._open.get(message.call)
        if on_message is not None and on_message(message, tail):
            self._open.pop(message.call, None)


class StubMetrics:
    """Registers and reads with questions, changes with messages; the host handles both in the order they were sent."""

    def __init__(self, calls: HostCalls, instance_name: str) -> None:
        self._calls = calls
        self._instance_name = instance_name

    def create_family(self, name: str, description: str, kind: int) -> object:
        """Register a family; returns its handle."""
        return self._ask(
            "Error when creating MetricFamily: ", lambda number: NewFamily(number, name, description, int(kind))
        )

    def create(self, family: Any, labels: "Dict[str, str]", buckets: "Optional[List[float]]") -> object:
        """Register a series; returns its handle."""
        return self._ask("Error when creating Metric: ", lambda number: NewMetric(number, family, labels, buckets))

    def value(self, metric: Any) -> float:
        return float(self._ask("Failed to get metric value: ", lambda number: ReadMetric(number, metric)))

    def change(self, metric: Any, change: MetricChange, value: float) -> None:
        self._calls.send(ChangeMetric(metric, int(change), value if isfinite(value) else str(value)))

    def drop(self, handle: Any) -> None:
        """Release a series or a family. In a fork of this process copies of metrics are not the model's."""
        if not self._calls.is_inherited():
            with suppress(TritonModelException, OSError):  # the host is gone, or the channel to it is closed
                self._calls.send(DropMetric(handle))

    def _ask(self, what: str, make: "Callable[[int], Question]") -> Any:
        try:
            return self._calls.ask(make)
        except HostRefusal as refusal:
            raise metric_failure(what, self._instance_name, refusal.message) from None


_LOAD = "Failed to load model: "
_UNLOAD = "Failed to unload model: "
_CHECK = "Failed to check model readiness: "


class LoadCalls:
    """Asks the host. The calling thread waits for the answer; other threads continue."""

    def __init__(self, calls: HostCalls, writer: OutputWriter, instance_name: str) -> None:
        self._calls = calls
        self._writer = writer
        self._instance_name = instance_name

    def load(self, model_name: str, config: str, files: "Optional[Dict[str, bytes]]") -> None:
        tail = OutputTail()
        places = self._write(files or {}, tail)
        try:
            self._ask(_LOAD, lambda number: LoadModel(number, model_name, config, places), tail)
        except MessageTooLong as error:  # nothing was sent
            self._writer.free(places)
            raise self._failure(_LOAD, f"the configuration, or the list of files, is too long: {error}") from None

    def unload(self, model_name: str, unload_dependents: bool) -> None:
        self._ask(_UNLOAD, lambda number: UnloadModel(number, model_name, unload_dependents))

    def is_ready(self, model_name: str, model_version: str) -> bool:
        """Whether a version of a model accepts requests, or any version for ``""``."""
        return bool(self._ask(_CHECK, lambda number: IsModelReady(number, model_name, model_version)))

    def _write(self, files: "Dict[str, bytes]", tail: OutputTail) -> "List[Any]":
        tensors = [
            Tensor._from_wire(printable(path), "UINT8", [len(content)], content) for path, content in files.items()
        ]
        try:
            return self._writer.write(tensors, tail)
        except OutputMemoryExhausted as exhausted:
            raise self._failure(_LOAD, str(exhausted)) from None

    def _ask(self, what: str, make: "Callable[[int], Question]", tail: "Optional[OutputTail]" = None) -> Any:
        try:
            return self._calls.ask(make, tail)
        except HostRefusal as refusal:
            raise self._failure(what, refusal.message) from None

    def _failure(self, what: str, message: str) -> TritonModelException:
        return TritonModelException(
            f"{what}Failed to process the request for model '{self._instance_name}', message: {message}"
        )
