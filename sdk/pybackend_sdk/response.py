"""``InferenceResponse``: the answer that ``execute`` returns or a response sender sends."""

import json
import threading
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Union

from pybackend_sdk.arguments import INT64_MAX, INT64_MIN, incompatible, sequence, text
from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.missed import names_of, note_missing_output
from pybackend_sdk.tensor import Tensor

ParameterValue = Union[bool, int, float, str]
Parameters = Dict[str, ParameterValue]


def checked_parameters(parameters: Any) -> Optional[Parameters]:
    """Return a private copy of the parameters that a model set; None if it set none."""
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}: parameters map names to bool, int or str.")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        text("parameters", key, key)
        if isinstance(value, str):
            text("parameters", key, value)
        elif not isinstance(value, int):  # bool is an int too
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        elif not INT64_MIN <= value <= INT64_MAX:
            raise TritonModelException(
                f"Parameter '{key}' is {value}, which does not fit into 64 bits; send it as str."
            )
    return dict(parameters)


def parameters_json(parameters: Optional[Parameters]) -> str:
    """Return parameters as JSON text, ``{}`` if there are none."""
    return json.dumps(parameters) if parameters else "{}"


class InferenceResponse:
    """The answer to one request: output tensors, or an error.

    Args:
        output_tensors: the outputs. Ignored if there is an error.
        error: the failure, None for success.
        parameters: names to ``bool``, ``int`` or ``str``; clients receive them beside the outputs.

    Raises:
        TypeError: an argument has the wrong type; only ``error`` and ``parameters`` accept None.
        TritonModelException: an output is None, or parameters cannot be sent.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_error", "_output_tensors", "_parameters")

    _output_tensors: List[Tensor]
    _error: Optional[TritonError]
    _parameters: Optional[Parameters]

    def __init__(
        self,
        output_tensors: "Sequence[Tensor]" = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Parameters] = None,
    ) -> None:
        tensors = output_tensors[:] if type(output_tensors) is list else _listed(output_tensors)
        for tensor in tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                _refuse(tensor)
        if error is not None and not isinstance(error, TritonError):
            incompatible("InferenceResponse", "error", "a TritonError", error)
        self._output_tensors = tensors
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters)

    @classmethod
    def _of(cls, output_tensors: List[Tensor]) -> "InferenceResponse":
        """Make a response of tensors, which are not checked; the list becomes the response's own."""
        response = cls.__new__(cls)
        response._output_tensors = output_tensors
        response._error = None
        response._parameters = None
        return response

    def output_tensors(self) -> List[Tensor]:
        """The outputs."""
        if self._error is not None:
            note_missing_output(_failed(self._error), failed=True)
        return list(self._output_tensors)

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Why the request failed, None if it did not."""
        return self._error

    def parameters(self) -> str:
        """The custom parameters as JSON text, ``{}`` if there are none."""
        return parameters_json(self._parameters)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """Return the response's first output of that name, None if it has none."""
    tensors = inference_response.output_tensors()
    for tensor in tensors:
        if tensor.name() == name:
            return tensor
    if type(inference_response) is InferenceResponse and inference_response._error is None:
        note_missing_output(f"The response has no output '{name}': its outputs are {names_of(tensors)}", failed=False)
    return None


def _failed(error: TritonError) -> str:
    return f"The called model has failed, which `has_error()` tells: {error.message().strip()}"


def _listed(output_tensors: Any) -> List[Tensor]:
    return sequence("InferenceResponse", "output_tensors", output_tensors, "Tensor")


def _refuse(tensor: Any) -> NoReturn:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    incompatible("InferenceResponse", "output_tensors", "a sequence of Tensor", tensor)


class ResponseIterator:
    """Iterates over responses as they arrive, and can repeat once all have; made by ``exec`` only."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_cancel", "_finished", "_lock", "_next", "_receive", "_responses")

    _receive: "Callable[[], Optional[InferenceResponse]]"
    _cancel: "Callable[[], None]"
    _responses: List[InferenceResponse]
    _next: int
    _finished: bool
    _lock: threading.Lock

    def __init__(self) -> None:
        raise TypeError("ResponseIterator: No constructor defined! Use request.exec(decoupled=True).")

    @classmethod
    def _create(
        cls, receive: "Callable[[], Optional[InferenceResponse]]", cancel: "Callable[[], None]"
    ) -> "ResponseIterator":
        """Make the iterator of a running request: ``receive`` waits for the next response and returns None after the last."""
        iterator = cls.__new__(cls)
        iterator._receive = receive
        iterator._cancel = cancel
        iterator._lock = threading.Lock()
        iterator._responses = []
        iterator._next = 0
        iterator._finished = False
        return iterator

    def __iter__(self) -> "ResponseIterator":
        """This iterator: it starts again once all responses were read, and otherwise continues."""
        if self._finished and self._next == len(self._responses):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        """Wait for the next response. Threads that share the iterator share its responses: each goes to one thread."""
        with self._lock:
            if self._next == len(self._responses) and not self._finished:
                response = self._receive()
                if response is None:
                    self._finished = True
                else:
                    self._responses.append(response)
            if self._next == len(self._responses):
                raise StopIteration("Iteration is done for the responses.")
            self._next += 1
            return self._responses[self._next - 1]

    def cancel(self) -> None:
        """Ask the server to stop the request; has no effect once all its responses have arrived."""
        if not self._finished:
            self._cancel()
