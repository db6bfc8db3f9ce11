"""The record of one sampled request, or of one that a model or an ensemble made for it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from pybackend.observability.tracing.context import TraceContext
from pybackend.observability.tracing.settings import TraceLevel, TraceMode, TraceSettings
from pybackend_wire.dtypes import DATATYPES

MOST_EVENTS = 1024
"""Most times of one trace; a stream has two per response."""

MOST_CHILDREN = 1024
"""Most requests that models may add to one trace."""

MOST_TENSOR_BYTES = 64 * 1024
"""Bytes of one tensor that are recorded."""

_numbers = count(1)


class Event(NamedTuple):
    """A moment, by ``time.monotonic_ns()``."""

    name: str
    ns: int


Times = tuple[int, int, int]
"""When an execution began in the stub, and when ``execute`` was called and returned, by ``time.monotonic_ns()``."""


class RecordedTensor(NamedTuple):
    """The beginning of a tensor. ``activity`` is the station at which it was seen, ``nbytes`` its whole size."""

    activity: str
    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes
    nbytes: int
    ns: int


class RequestTrace:
    """A record. It is finished once the request is answered, no stub executes it, and its answer was sent.

    Attributes:
        number: its id in trace files and for models.
        parent: the record of the request that it was made for; None for a client's.
        settings: those under which it was sampled.
        context: its span; with front ends, that of the client's whole request.
        compute_context: the span that calls of the model belong to.
        outer: the context that the client sent, None if it sent none.
        protocol: ``HTTP`` or ``GRPC`` for a client's request, empty for others.
        events: moments, in the order in which they became known.
        times: of its last execution; None before it is over.
        executed_ns: when the host had that execution's outputs.
    """

    def __init__(
        self,
        settings: TraceSettings,
        finish: Callable[[RequestTrace], None],
        *,
        protocol: str = "",
        sends: bool = False,
        outer: TraceContext | None = None,
        context: TraceContext,
        parent: RequestTrace | None = None,
    ) -> None:
        self.number = next(_numbers)
        self.parent = parent
        self.settings = settings
        self.protocol = protocol
        self.outer = outer
        self.context = context
        self.model_context = context.child() if protocol else context
        self.compute_context = context.child()
        self.model_name = self.model_version = self.namespace = self.request_id = self.error = ""
        self.queued_ns = self.executed_ns = 0
        self.events: list[Event] = []
        self.tensors: list[RecordedTensor] = []
        self.times: Times | None = None
        self._finish = finish
        self._request: Any = None
        self._children = 0
        self._answered = self._executing = self._sent_first = self._finished = False
        self._sending = sends

    # For front ends

    def mark(self, name: str, ns: int = 0) -> None:
        """Note a moment; now if it has no time."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(Event(name, ns or time.monotonic_ns()))

    def sent(self) -> None:
        """The answer was handed over to be sent, or will never be."""
        if self._sending:
            self._sending = False
            if self._sent_first:
                self.events.append(Event(f"{self.protocol}_SEND_END", time.monotonic_ns()))
            self._finish_if_over()

    # For the engine

    def follow(self, request: Any, model: Any, on_response: Callable[[Any], None]) -> Callable[[Any], None]:
        """Begin: the request is about to be queued. Returns what receives the responses instead, and passes them on.

        ``request`` is an :class:`~pybackend.inference.request.InferenceRequest`, whose module imports this one, and
        ``model`` is the version that runs it.
        """
        self.model_name, self.model_version, self.namespace = model.name, model.version, model.namespace
        self.request_id = request.id
        self._request = request
        now_ns = time.monotonic_ns()
        self.mark("REQUEST_START", now_ns)
        if TraceLevel.TENSORS in self.settings.levels:
            self._record("TENSOR_QUEUE_INPUT", request.inputs, now_ns)

        def noting(response: Any) -> None:
            self._on_response(response)
            on_response(response)

        return noting

    def _on_response(self, response: Any) -> None:
        now_ns = time.monotonic_ns()
        if TraceLevel.TENSORS in self.settings.levels and len(self.tensors) < MOST_EVENTS:
            self._record("TENSOR_BACKEND_OUTPUT", response.outputs, now_ns)
        self.mark("INFER_RESPONSE_COMPLETE", now_ns)
        if response.error is not None:
            self.error = str(response.error)
        if self.protocol and not self._sent_first:
            self._sent_first = True
            self.mark(f"{self.protocol}_SEND_START", now_ns)
        if response.final:
            self.events.append(Event("REQUEST_END", now_ns))
            self._answered = True
            self._finish_if_over()

    # For instances

    @property
    def model_carrier(self) -> str:
        """The context for the model, which continues the trace; empty if it cannot be continued outside."""
        return self.compute_context.carrier if self.settings.mode is TraceMode.OPENTELEMETRY else ""

    @property
    def trace_id(self) -> str:
        """The trace as lines of the log name it; empty if it cannot be continued outside."""
        return f"{self.context.trace_id:032x}" if self.settings.mode is TraceMode.OPENTELEMETRY else ""

    def begin_execution(self) -> None:
        """The request is sent to a stub."""
        self._executing = True

    def end_execution(self) -> None:
        """The stub gives the request back, or is dead."""
        if self._executing:
            self._executing = False
            self._finish_if_over()

    def executed(self, times: Times, now_ns: int) -> None:
        self.times, self.executed_ns = times, now_ns
        began_ns, infer_start_ns, infer_end_ns = times
        self.mark("COMPUTE_START", began_ns)
        self.mark("COMPUTE_INPUT_END", infer_start_ns)
        self.mark("COMPUTE_OUTPUT_START", infer_end_ns)
        self.mark("COMPUTE_END", now_ns)
        if TraceLevel.TENSORS in self.settings.levels:
            inputs = [each for each in self.tensors if each.activity == "TENSOR_QUEUE_INPUT"]
            self.tensors += [each._replace(activity="TENSOR_BACKEND_INPUT", ns=began_ns) for each in inputs]
        self.end_execution()

    # For requests that the model makes

    def child(self, *, of_execution: bool) -> RequestTrace | None:
        """The record of a request that is made for this one; None if there are too many.

        The model makes it while it executes (``of_execution``), or it is a step of an ensemble.
        """
        first = self
        while first.parent is not None:
            first = first.parent
        if first._children >= MOST_CHILDREN:
            return None
        first._children += 1
        outer = self.compute_context if of_execution else self.model_context
        return RequestTrace(self.settings, self._finish, outer=outer, context=outer.child(), parent=self)

    def _record(self, activity: str, tensors: Sequence[Any], now_ns: int) -> None:
        for tensor in tensors:
            data = tensor.data
            # The bytes in a client's shared memory are not the host's to read.
            head = bytes(data[:MOST_TENSOR_BYTES]) if isinstance(data, bytes | bytearray | memoryview) else b""
            self.tensors.append(
                RecordedTensor(activity, tensor.name, tensor.datatype, tuple(tensor.shape), head, len(data), now_ns)
            )

    def _finish_if_over(self) -> None:
        if not self._answered or self._executing or self._sending or self._finished:
            return
        self._finished = True
        request, self._request = self._request, None  # a reference cycle, which would stay until garbage collection
        if request is not None and request.queued_ns:
            self.queued_ns = request.queued_ns
            self.events.append(Event("QUEUE_START", request.queued_ns))
        self._finish(self)


_LENGTH = struct.Struct("<I")


def described(tensor: RecordedTensor) -> dict[str, str]:
    """A tensor as records of both forms show it."""
    shape = ",".join(map(str, tensor.shape))
    return {"name": tensor.name, "data": elements_text(tensor), "shape": shape, "dtype": tensor.datatype}


def elements_text(tensor: RecordedTensor) -> str:
    """The elements that were recorded, separated by commas."""
    if tensor.datatype == "BYTES":
        return ",".join(_strings(tensor.data))
    if tensor.datatype == "BF16":
        halves = np.frombuffer(tensor.data[: len(tensor.data) // 2 * 2], np.uint16)
        values = (halves.astype(np.uint32) << 16).view(np.float32)
    else:
        dtype = DATATYPES[tensor.datatype].numpy
        assert dtype is not None  # only BF16 has none
        values = np.frombuffer(tensor.data[: len(tensor.data) // dtype.itemsize * dtype.itemsize], dtype)
    if values.dtype == np.bool_:
        values = values.astype(np.uint8)
    return ",".join(map(str, values.tolist()))


def _strings(data: bytes) -> Iterator[str]:
    """The strings of serialised elements, as far as they are whole."""
    at = 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        if at > len(data):
            return
        yield data[at - size : at].decode("utf-8", "backslashreplace")
