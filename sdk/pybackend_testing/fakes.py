"""Fake models: functions that a test passes as ``models={"other": function}``.

A function receives a call's inputs as arrays, by name if its parameters have those names, otherwise by position. A
parameter called ``request`` receives the :class:`~pybackend_sdk.request.InferenceRequest`. The function returns outputs
by name, a single array if the call requests one output, an ``InferenceResponse`` or a ``TritonError``. A generator
function is a decoupled model: each value is a response. A coroutine function is awaited.
"""

import inspect
from collections.abc import Iterator as AbstractIterator
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np

from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.execution import prune
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_testing.errors import HarnessError, PendingFailures, contained, format_error
from pybackend_testing.request import wire_bytes

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

RunCoroutine = Callable[[Any], Any]


class Replies(Protocol):
    """The responses to one call of a model."""

    def receive(self) -> Tuple[Optional[InferenceResponse], bool]:
        """Wait for the next response, and whether it is the last; None stands for a final flag sent alone."""

    def cancel(self) -> None:
        """Stop: the caller wants no more responses. Any thread may call it, also while another one receives."""


class FakeModel:
    """A function as a model.

    ``run_coroutine`` waits for a coroutine; ``failures`` collects exceptions that are the test's.
    """

    def __init__(
        self,
        name: str,
        function: "Callable[..., Any]",
        run_coroutine: RunCoroutine,
        failures: PendingFailures,
    ) -> None:
        self.name = name
        self.decoupled = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        self._function = function
        self._run_coroutine = run_coroutine
        self._failures = failures

    def call(self, request: InferenceRequest) -> Replies:
        """Run the function on a model's request; an exception becomes a response."""
        replies = _FakeReplies(self, request._requested_output_names, self._run_coroutine)
        try:
            arguments, named = self._arguments(request)
            replies.take(self._function(*arguments, **named))
        except BaseException as error:  # noqa: BLE001  as what a model raises
            replies.end_with(self.error(error))
        return replies

    def error(self, error: BaseException) -> InferenceResponse:
        """Return the response for an exception from the function. An assertion is the test's, not the model's."""
        if isinstance(error, (AssertionError, HarnessError)) or not contained(error):
            self._failures.keep(error)
        text = format_error(error)
        if not isinstance(error, TritonModelException):
            text = f"Failed to process the request(s) for model '{self.name}_0', message: {text}"
        else:
            text = str(error)
        return InferenceResponse(error=TritonError(text))

    def _arguments(self, request: InferenceRequest) -> "Tuple[List[Any], Dict[str, Any]]":
        arrays = {tensor.name(): _array(tensor) for tensor in request.inputs()}
        try:
            parameters = list(inspect.signature(self._function).parameters.values())
        except (TypeError, ValueError):  # e.g. numpy's functions
            return list(arrays.values()), {}
        named: Dict[str, Any] = {}
        if "request" not in arrays and any(parameter.name == "request" for parameter in parameters):
            parameters = [parameter for parameter in parameters if parameter.name != "request"]
            named["request"] = request
            if not parameters:
                return [], named
        names = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        if takes_any or names.issuperset(arrays):
            return [], {**arrays, **named}
        places = [parameter for parameter in parameters if parameter.kind in _BY_POSITION]
        required = sum(parameter.default is inspect.Parameter.empty for parameter in places)
        takes_more = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
        if required <= len(arrays) and (takes_more or len(arrays) <= len(places)):
            return list(arrays.values()), named
        raise HarnessError(
            f"models={{'{self.name}': ...}}: the function takes {inspect.signature(self._function)}, but the model calls it "
            f"with inputs {list(arrays)}. Name its parameters after the inputs, or take **inputs."
        )

    def response(self, value: Any, requested: "Sequence[str]") -> InferenceResponse:
        """Turn the function's result into a response with its own copy of the memory."""
        if isinstance(value, TritonError):
            return InferenceResponse(error=value)
        if isinstance(value, InferenceResponse):
            if value.has_error():
                return InferenceResponse(error=value.error())
            response = InferenceResponse([_received(tensor) for tensor in prune(value, requested)])
            response._parameters = value._parameters
            return response
        if not isinstance(value, Mapping):
            value = {self._only_output(value, requested): value}
        tensors = [it if isinstance(it, Tensor) else Tensor(name, _sendable(it)) for name, it in value.items()]
        return InferenceResponse([_received(tensor) for tensor in prune(InferenceResponse(tensors), requested)])

    def _only_output(self, value: Any, requested: "Sequence[str]") -> str:
        if value is None or len(requested) != 1:
            asked = f"the model requests outputs {list(requested)}" if requested else "the model requests all outputs"
            raise HarnessError(
                f"models={{'{self.name}': ...}}: the function returned {type(value).__name__}, but {asked}: return a dict of "
                "arrays by output name"
            )
        return requested[0]


class _FakeReplies:
    """The responses from a function: one value or many."""

    def __init__(self, model: FakeModel, requested: "Sequence[str]", run_coroutine: RunCoroutine) -> None:
        self._model = model
        self._requested = requested
        self._run_coroutine = run_coroutine
        self._values: Any = None
        self._last: Optional[InferenceResponse] = None
        self._cancelled = False

    def take(self, value: Any) -> None:
        if inspect.iscoroutine(value):
            value = self._run_coroutine(value)
        if inspect.isasyncgen(value):
            value = _drawn(value, self._run_coroutine)
        if isinstance(value, AbstractIterator):
            self._model.decoupled = True
            self._values = value
        else:
            self._last = self._model.response(value, self._requested)

    def end_with(self, response: InferenceResponse) -> None:
        self._values, self._last = None, response

    def receive(self) -> Tuple[Optional[InferenceResponse], bool]:
        if self._values is not None:
            try:
                if not self._cancelled:
                    return self._model.response(next(self._values), self._requested), False
                getattr(self._values, "close", lambda: None)()
            except StopIteration:
                pass
            except BaseException as error:  # noqa: BLE001  as what a model raises
                self.end_with(self._model.error(error))
        return self._last, True

    def cancel(self) -> None:
        self._cancelled = True


def _drawn(values: Any, run_coroutine: RunCoroutine) -> "AbstractIterator[Any]":
    while True:
        try:
            value = run_coroutine(values.__anext__())
        except StopAsyncIteration:
            return
        yield value


def _array(tensor: Tensor) -> Any:
    return _received(tensor, "UINT16" if tensor._datatype == "BF16" else tensor._datatype).as_numpy()


def _received(tensor: Tensor, datatype: Optional[str] = None) -> Tensor:
    return Tensor._from_wire(tensor.name(), datatype or tensor._datatype, tensor.shape(), wire_bytes(tensor))


def _sendable(value: Any) -> "np.ndarray":
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array
