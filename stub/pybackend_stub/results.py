"""Turns responses into results, and collects them: several leave in one frame, but none waits for a slow execution."""

import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from pybackend_sdk.execution import prune
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, Unsent, shortened
from pybackend_stub.client_memory import RegionError
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter, PlacedOutputs
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import BlockPlace, Failure, RequestResult
from pybackend_wire.stub_messages import FreeInput, LocalCall, Rescheduled, encoded, encoded_result

MOST_UNKNOWN = 64
"""Most names of unknown outputs to tell the host of."""


class UnknownOutputs:
    """Looks after outputs whose names are not configured, which no request can name.

    Args:
        tell: tells the host of such a name; None if the host gets these outputs, and refuses the response.
    """

    def __init__(self, configured: "Sequence[str]", tell: "Optional[Callable[[str], None]]") -> None:
        self._configured = frozenset(configured)
        self._tell = tell
        self._told: Set[str] = set()

    def after_pruning(self, response: InferenceResponse, kept: "List[Tensor]") -> "List[Tensor]":
        """Return the outputs to send of a response of which only some were requested."""
        unknown = [tensor for tensor in response._output_tensors if tensor._name not in self._configured]
        if self._tell is None:
            return [*kept, *unknown]
        for tensor in unknown:
            if tensor._name not in self._told and len(self._told) < MOST_UNKNOWN:
                self._told.add(tensor._name)
                self._tell(tensor._name)
        return kept


class ResultWriter:
    """Turns responses and exceptions into :class:`pybackend_wire.messages.RequestResult`. Any thread may use it."""

    def __init__(
        self,
        writer: OutputWriter,
        instance_name: str,
        format_error: "Callable[[BaseException], str]",
        unknown: "UnknownOutputs",
    ) -> None:
        self.instance_name = instance_name
        self.format_error = format_error
        self._writer = writer
        self._unknown = unknown

    def response(
        self,
        response: InferenceResponse,
        requested_output_names: "Sequence[str]",
        tail: OutputTail,
        most_text: int = MOST_TEXT,
    ) -> "Tuple[Optional[Failure], Sequence[Any], Optional[Dict[str, Any]]]":
        """Turn one response into a result, as the fields of one, with its outputs copied to memory that the host reads.

        Args:
            most_text: most characters of the error or the parameters: frames are bounded.
        """
        error = response._error
        if error is not None:
            return self.failure(int(error.code()), str(error.message()), most_text)
        parameters = response._parameters or None
        if parameters is not None:
            length = text_length(None, parameters)
            if length > most_text:
                message = f"response parameters of {length} characters are too long, at most {most_text} can be sent"
                return self.failure(ErrorCode.INTERNAL, self.prefixed(message), most_text)
        try:
            outputs = self.chosen(response, requested_output_names)
            if type(requested_output_names) is PlacedOutputs:
                places = self._writer.write_placed(outputs, tail, requested_output_names.places)
            else:
                places = self._writer.write(outputs, tail)
        except RegionError as refused:
            return self.failure(int(refused.code), refused.message, most_text)
        except OutputMemoryExhausted as exhausted:
            return self.failure(ErrorCode.UNAVAILABLE, str(exhausted), most_text)
        except BaseException as failed:  # noqa: BLE001  a tensor with unreadable bytes fails only this request
            return self.failure(ErrorCode.INTERNAL, self.prefixed(self.format_error(failed)), most_text)
        return None, places, parameters

    def chosen(self, response: InferenceResponse, requested_output_names: "Sequence[str]") -> "List[Tensor]":
        """The outputs of a response that go to the client that asked."""
        outputs = prune(response, requested_output_names)
        if outputs is not response._output_tensors:
            outputs = self._unknown.after_pruning(response, outputs)
        return outputs

    @staticmethod
    def failure(code: int, message: str, most_text: int = MOST_TEXT) -> RequestResult:
        return RequestResult(Failure(code, shortened(message, most_text)), [], None)

    def raised(self, error: BaseException) -> str:
        """Return the error text for requests whose ``execute`` raised or broke the rules."""
        return self.prefixed(self.format_error(error))

    def prefixed(self, message: str) -> str:
        """Return the error text for any failure in an execution."""
        return f"Failed to process the request(s) for model '{self.instance_name}', message: {message}"


def text_length(error: "Optional[Failure]", parameters: "Optional[Dict[str, Any]]") -> int:
    """Count the characters of a result's error and parameters."""
    if error is not None:
        return len(error.message)
    return sum(len(key) + len(value) for key, value in (parameters or {}).items() if isinstance(value, str))


MOST_LOCAL_CALLS = 256
"""Most messages that are collected while a model calls others in its process: frames are bounded."""

KEEP_NS = 1_000_000
"""How long an answer may wait for others, from the beginning of its execution on: for a shorter time a wake-up of the
host costs more than the wait, and if executions take longer, they hold back no answer."""


class AnswerQueue:
    """Collects messages until they are due.

    Short executions that arrived together are answered together. If one of them takes long, the host notices the
    silence and nudges the attendant, which sends the collected answers. So a slow execution delays no answer, and fast
    ones need no timer.
    """

    def __init__(self, channel: HostChannel) -> None:
        self.lock = threading.RLock()
        """Held while an answer is put together: its offsets count from the tail that :meth:`flush` sends."""
        self.tail = OutputTail()
        self._channel = channel
        self._thread = threading.get_ident()
        self._messages: List[Any] = []
        self._oldest_ns = 0

    def add_result(
        self,
        execution: int,
        began_ns: int,
        start_ns: int,
        end_ns: int,
        results: "Sequence[Optional[Sequence[Any]]]",
        rescheduled: "Sequence[int]" = (),
    ) -> int:
        """Queue a :class:`pybackend_wire.stub_messages.Result`; returns the time when it was ready."""
        done_ns = time.monotonic_ns()
        if not self._messages:
            self._oldest_ns = began_ns
        if rescheduled:
            self._messages.append(encoded(Rescheduled(execution, list(rescheduled))))
        self._messages.append(encoded_result(execution, began_ns, start_ns, end_ns, done_ns, results))
        return done_ns

    def add_released(self, blocks: "List[BlockPlace]") -> None:
        """Queue released input blocks, after the result that used them."""
        with self.lock:
            self._messages.append(encoded(FreeInput(blocks)))

    def add(self, message: Any) -> None:
        """Queue a message that belongs to the result that comes next; the caller holds :attr:`lock`."""
        self._messages.append(encoded(message))

    def add_local_call(self, call: LocalCall) -> None:
        """Queue what the host must know before the answer for which another model in this process was run."""
        with self.lock:
            if not self._messages:
                self._oldest_ns = time.monotonic_ns()
            self._messages.append(encoded(call))
            if len(self._messages) < MOST_LOCAL_CALLS and threading.get_ident() == self._thread:
                return
        with suppress(HostGone):  # the thread that reads notices, too
            self.flush()

    def hurry(self) -> None:
        """Keep no more answers beside those that wait."""
        self._oldest_ns = 0

    def keep_or_flush(self, now_ns: int) -> None:
        """Keep the answers while more executions follow at once, unless one of them turned out to be slow."""
        if now_ns - self._oldest_ns >= KEEP_NS:
            self.flush()

    def flush(self) -> None:
        """Send the collected answers in one frame."""
        with self.lock:
            unsent = self.take()
            if unsent is not None:
                self._channel.send(*unsent)

    def take(self) -> "Optional[Unsent]":
        """Return the frame of the collected answers, which the caller sends; it holds :attr:`lock` until then."""
        if not self._messages:
            return None
        messages, self._messages = self._messages, []
        return messages, self.tail.take()
