"""Processes that a model forks, such as ``multiprocessing`` pools: their BLS calls go through their parent process.

A fork cannot use the parent's connection to the host: two processes would write into one stream. Each fork gets a
socket to its parent, where a thread runs its requests and sends the responses back.
"""

import contextvars
import os
import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, Callable, List, Optional, Tuple, Union

import numpy as np

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse, ResponseIterator
from pybackend_sdk.runtime import Runtime, bind_runtime, current_runtime
from pybackend_sdk.tensor import Tensor
from pybackend_stub.model_calls import RECEIVED
from pybackend_stub.model_output import write_record
from pybackend_stub.receiver import ServiceThread
from pybackend_wire.errors import ErrorCode

_LENGTH = struct.Struct("<Q")


class ForkRelay:
    """Gives each fork a connection to its parent, and serves it there.

    Args:
        on_fork: called in each fork to release resources that belong to its parent alone.
    """

    def __init__(self, on_fork: "Callable[[], None]") -> None:
        self._on_fork = on_fork
        self._forking = threading.local()
        self._parent_ends: List[socket.socket] = []

    def install(self) -> None:
        os.register_at_fork(
            before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def _before(self) -> None:
        try:
            self._forking.ends = socket.socketpair()
        except OSError:  # no descriptors left: this fork gets no connection
            self._forking.ends = None, None

    def _after_in_parent(self) -> None:
        ours, theirs = self._forking.ends
        if ours is not None:
            theirs.close()
            self._parent_ends.append(ours)
            # In the context of the thread that forks, which knows which model's code it runs.
            ServiceThread("pybackend-fork", contextvars.copy_context().run, self._serve, ours).start()

    def _after_in_child(self) -> None:
        ours, theirs = self._forking.ends
        for end in (*self._parent_ends, ours):
            if end is not None:
                end.close()
        self._parent_ends.clear()
        self._on_fork()
        bind_runtime(ForkedRuntime(theirs, current_runtime()))

    def _serve(self, end: socket.socket) -> None:
        with suppress(OSError, EOFError), end:
            while True:
                fields, places = _receive(end)
                inputs = [_tensor(place) for place in places]
                refusal: Optional[str] = None
                response: Any = InferenceResponse()
                try:
                    response = InferenceRequest(inputs=inputs, **fields).exec()
                except TritonModelException as refused:
                    refusal = str(refused)
                except Exception as error:  # noqa: BLE001  the fork waits for an answer to any failure
                    response = InferenceResponse(error=TritonError(f"{type(error).__name__}: {error}"))
                failure = response.error()
                _send(
                    end,
                    (
                        refusal,
                        None if failure is None else (int(failure.code()), failure.message()),
                        [_place(tensor) for tensor in response.output_tensors()],
                        response._parameters,
                    ),
                )
        with suppress(ValueError):
            self._parent_ends.remove(end)


class ForkedRuntime(Runtime):
    """The services that a model can use in a fork of its process."""

    reason = "This process was forked by the model: only logging, and exec() without 'decoupled', are available in it."

    def __init__(self, end: "Optional[socket.socket]", parent: Runtime) -> None:
        self.model_directory = parent.model_directory
        self.instance_name = parent.instance_name
        self.backend_settings = parent.backend_settings
        self._end = end
        self._lock = threading.Lock()

    def log(self, level: Any, file: str, line: int, message: str) -> None:
        """Write a line into the same pipe as the parent's lines."""
        if not write_record(int(level), file, line, message):
            super().log(level, file, line, message)

    def infer(self, request: InferenceRequest, decoupled: bool) -> "Union[InferenceResponse, ResponseIterator]":
        target = request._target
        if target is None:
            raise TritonModelException(RECEIVED)
        if decoupled or self._end is None:
            self._refuse("The request cannot be run.")
        fields = {
            "request_id": request._request_id,
            "correlation_id": request._correlation_id,
            "requested_output_names": list(request._requested_output_names),
            "model_name": target.model_name,
            "model_version": target.model_version,
            "flags": request._flags,
            "timeout": request._timeout,
            "parameters": request._parameters,
        }
        try:
            with self._lock:
                _send(self._end, (fields, [_place(tensor) for tensor in request._inputs]))
                refusal, failure, places, parameters = _receive(self._end)
        except (OSError, EOFError):
            raise TritonModelException("The model's process that this one was forked from is gone.") from None
        if refusal is not None:
            raise TritonModelException(refusal)
        if failure is not None:
            return InferenceResponse(error=TritonError(failure[1], ErrorCode(failure[0])))
        response = InferenceResponse([_tensor(place) for place in places])
        response._parameters = parameters
        return response

    def is_cancelled(self, request: InferenceRequest) -> bool:
        """Always False: cancellations do not reach forks."""
        return False


_Place = Tuple[str, str, "List[int]", bytes]


def _place(tensor: Tensor) -> _Place:
    payload = tensor._payload()
    data = payload.tobytes() if isinstance(payload, np.ndarray) else bytes(payload)
    return tensor._name, tensor._datatype, list(tensor._shape), data


def _tensor(place: _Place) -> Tensor:
    name, datatype, shape, data = place
    return Tensor._from_wire(name, datatype, shape, bytearray(data), False)


def _send(end: socket.socket, value: Any) -> None:
    # Both ends are processes of one model, which trust each other.
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    end.sendall(_LENGTH.pack(len(data)) + data)


def _receive(end: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_read(end, _LENGTH.size))
    return pickle.loads(_read(end, length))  # noqa: S301  as in _send


def _read(end: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        received = end.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return data
