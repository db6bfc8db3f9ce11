"""``InferenceRequest``: the requests that ``execute`` receives, and those that a model builds to call another model."""

from enum import IntEnum
from typing import Any, Awaitable, List, NamedTuple, Optional, Sequence, Set, Union

from pybackend_sdk.arguments import INT64_MAX, INT64_MIN, UINT32_MAX, UINT64_MAX, incompatible, integer, sequence, text
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.missed import note_missing_input
from pybackend_sdk.response import InferenceResponse, Parameters, ResponseIterator, checked_parameters, parameters_json
from pybackend_sdk.response_sender import InferenceResponseSender
from pybackend_sdk.runtime import current_runtime
from pybackend_sdk.tensor import Tensor


class MemoryType(IntEnum):
    """Kinds of memory that a model can prefer."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU


class PreferredMemory:
    """Preferred placement for the outputs of a BLS request.

    Args:
        preferred_memory_type: ``TRITONSERVER_MEMORY_GPU`` or ``TRITONSERVER_MEMORY_CPU``.
        preferred_device_id: the device's number.

    Raises:
        TypeError: an argument has the wrong type.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            incompatible("PreferredMemory", "preferred_memory_type", "a TRITONSERVER_MEMORY_*", preferred_memory_type)
        self._memory_type = preferred_memory_type
        self._device_id = integer("PreferredMemory", "preferred_device_id", preferred_device_id, INT64_MIN, INT64_MAX)


class SharedMemory:
    """The tensor memory of this process, for tests that check for leaks."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()

    def free_memory(self) -> int:
        """Free bytes of tensor memory; 0 without a server, where there is no such memory."""
        return current_runtime().free_memory_bytes()


shared_memory = SharedMemory()
"""The only instance."""


class InferenceTrace:
    """The trace of a request; pass it to a BLS request so that both are recorded together."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_context", "_number")

    def __init__(self) -> None:
        self._number = 0
        self._context: Optional[str] = None

    @classmethod
    def _from_wire(cls, number: int, context: Optional[str]) -> "InferenceTrace":
        """Make the trace of a request that arrived.

        The context says how it is continued outside; None if it cannot be.
        """
        trace = cls()
        trace._number, trace._context = number, context
        return trace

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry propagation context, None if the request is not traced with OpenTelemetry.

        It is a JSON object with the fields of W3C trace context: ``traceparent``, and ``tracestate`` if there is one.
        """
        return self._context


TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

_MISSING: Any = object()
_ANYWHERE: Any = object()
"""Default of arguments for which authors have no other word than leaving them out; None is refused."""


class Target(NamedTuple):
    """Destination of a request that a model built (a BLS call); version -1 lets the server choose."""

    model_name: str
    model_version: int
    preferred_memory: Optional[PreferredMemory]


class InferenceRequest:
    """One request: named tensors for one model.

    Args:
        request_id: shown in logs and returned with the response.
        correlation_id: of the sequence the request belongs to; 0 for none.
        inputs: the input tensors. Required.
        requested_output_names: the outputs to return; an empty list means all. Required.
        model_name: the model to run. Required.
        model_version: -1 lets the server choose.
        flags: ``TRITONSERVER_REQUEST_FLAG_*`` bits.
        timeout: in microseconds, 0 for none.
        preferred_memory: where outputs should be placed.
        trace: the trace to continue, e.g. ``request.trace()``.
        parameters: names to ``bool``, ``int`` or ``str``.

    Raises:
        TypeError: a required argument is missing or an argument has the wrong type; only ``parameters`` accepts None.
        RuntimeError: an integral ``correlation_id`` is negative or does not fit into 64 bits.
        TritonModelException: an output name is empty, an input is None, or parameters cannot be sent.
    """

    __module__ = "c_python_backend_utils"
    # _target is None in requests that a server passed to execute; _key is None in those that the model built.
    __slots__ = (
        "__weakref__",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_key",
        "_parameters",
        "_priority",
        "_release_flags",
        "_request_id",
        "_requested_output_names",
        "_sender",
        "_target",
        "_timeout",
        "_trace",
    )

    _request_id: str
    _correlation_id: Union[int, str]
    _inputs: List[Tensor]
    _requested_output_names: "Sequence[str]"
    _flags: int
    _timeout: int
    _parameters: Optional[Parameters]
    _priority: int
    _release_flags: int
    _key: Any
    _target: Optional[Target]
    _sender: Optional[InferenceResponseSender]
    _trace: Optional[InferenceTrace]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: "Sequence[Tensor]" = _MISSING,
        requested_output_names: "Sequence[str]" = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _ANYWHERE,
        trace: InferenceTrace = _ANYWHERE,
        parameters: Optional[Parameters] = None,
    ) -> None:
        for name, value in (
            ("inputs", inputs),
            ("requested_output_names", requested_output_names),
            ("model_name", model_name),
        ):
            if value is _MISSING:
                raise TypeError(f"{_CALL}(): incompatible constructor arguments: '{name}' is required.")
        self._request_id = text(_CALL, "request_id", request_id)
        model_name = text(_CALL, "model_name", model_name)
        whose = f"for request with id '{self._request_id}' and model name '{model_name}' should not be empty."
        self._inputs = _checked_inputs(inputs, whose)
        self._requested_output_names = _checked_names(requested_output_names, whose)
        self._flags = integer(_CALL, "flags", flags, 0, UINT32_MAX)
        self._timeout = integer(_CALL, "timeout", timeout, 0, UINT64_MAX)
        self._target = Target(
            model_name,
            integer(_CALL, "model_version", model_version, INT64_MIN, INT64_MAX),
            _preference("preferred_memory", preferred_memory, PreferredMemory),
        )
        self._trace = _preference("trace", trace, InferenceTrace)
        self._correlation_id = _checked_correlation_id(correlation_id)
        self._parameters = checked_parameters(parameters)
        self._priority = 0
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._key = None
        self._sender = None

    @classmethod
    def _from_wire(
        cls,
        request_id: str,
        correlation_id: Union[int, str],
        inputs: List[Tensor],
        requested_output_names: "Sequence[str]",
        flags: int,
        timeout: int,
        parameters: Optional[Parameters],
        key: Any,
        priority: int = 0,
    ) -> "InferenceRequest":
        """Make a request that arrived. This is the hot path, so nothing is checked.

        The inputs belong to the request from now on. The names are all the outputs to send, without duplicates: for a
        request that names none, the server has filled in all configured ones. The key is the runtime's, anything but
        None.
        """
        request = cls.__new__(cls)
        request._request_id = request_id
        request._correlation_id = correlation_id
        request._inputs = inputs
        request._requested_output_names = requested_output_names
        request._flags = flags
        request._timeout = timeout
        request._parameters = parameters
        request._key = key
        request._priority = priority
        request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        request._target = None
        request._sender = None
        request._trace = None
        return request

    def inputs(self) -> List[Tensor]:
        """The request's input tensors; optional inputs may be absent."""
        return list(self._inputs)

    def request_id(self) -> str:
        """The client's id, ``""`` if it gave none."""
        return self._request_id

    def correlation_id(self) -> Union[int, str]:
        """The id of the sequence the request belongs to, 0 if it belongs to none."""
        return self._correlation_id

    def requested_output_names(self) -> Set[str]:
        """The names of the requested outputs."""
        return set(self._requested_output_names)

    def flags(self) -> int:
        """``TRITONSERVER_REQUEST_FLAG_*`` bits."""
        return self._flags

    def set_flags(self, flags: int, /) -> None:
        """Replace the flags."""
        self._flags = integer("set_flags", "flags", flags, 0, UINT32_MAX)

    def timeout(self) -> int:
        """The client's time-out in microseconds, 0 if it set none."""
        return self._timeout

    def priority(self) -> int:
        """The client's priority: 1 is the highest, 0 the model's default."""
        return self._priority

    def parameters(self) -> str:
        """The custom parameters as JSON text, ``{}`` if there are none."""
        return parameters_json(self._parameters)

    def trace(self) -> InferenceTrace:
        """The trace the request belongs to."""
        return InferenceTrace() if self._trace is None else self._trace

    def is_cancelled(self) -> bool:
        """Whether the client no longer waits for the response. Always False for a request that the model built."""
        return self._target is None and current_runtime().is_cancelled(self)

    def get_response_sender(self) -> InferenceResponseSender:
        """The sender that answers this request; always the same object."""
        if self._sender is None:
            if self._target is None:
                self._sender = current_runtime().response_sender(self)
            else:
                self._sender = InferenceResponseSender._create(None)
        return self._sender

    def set_release_flags(self, flags: int, /) -> None:
        """Set what happens to the request after ``execute``: a ``TRITONSERVER_REQUEST_RELEASE_*`` constant.

        Raises:
            TritonModelException: the model built this request, so the server does not release it.
        """
        flags = integer("set_release_flags", "flags", flags, 0, UINT32_MAX)
        if self._target is not None:
            raise TritonModelException("Release flags can only be set on a request that was passed to 'execute'.")
        self._release_flags = flags

    def exec(self, decoupled: bool = False) -> Union[InferenceResponse, ResponseIterator]:
        """Run the request and wait for the result.

        Args:
            decoupled: return an iterator over the responses; required for models that send any number of them.

        Returns:
            The response, or an iterator over responses if ``decoupled``. If the inference failed, ``has_error()`` is
            True.

        Raises:
            TritonModelException: BLS calls are not possible in this place or at this time.
        """
        answer: Union[InferenceResponse, ResponseIterator] = current_runtime().infer(self, decoupled)
        return answer

    def async_exec(self, decoupled: bool = False) -> "Awaitable[Any]":
        """Like :meth:`exec`, for ``await`` in a coroutine.

        Raises:
            TritonModelException: BLS calls are not possible in this place or at this time.
            RuntimeError: no event loop runs in this thread.
        """
        return current_runtime().infer_async(self, decoupled)


_CALL = InferenceRequest.__name__


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """Return the request's first input of that name, None if it has none."""
    if type(inference_request) is not InferenceRequest:  # a fake in an author's own test
        return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)
    # Not through inputs(), which makes a copy: this runs for every input of every request.
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    note_missing_input(inference_request, name)
    return None


def _checked_inputs(inputs: Any, whose: str) -> List[Tensor]:
    tensors = sequence(_CALL, "inputs", inputs, "Tensor")
    for tensor in tensors:
        if tensor is None:
            raise TritonModelException("Input tensor " + whose)
        if not isinstance(tensor, Tensor):
            incompatible(_CALL, "inputs", "a sequence of Tensor", tensor)
    return tensors


def _checked_names(names: Any, whose: str) -> "Sequence[str]":
    checked = [
        text(_CALL, "requested_output_names", name) for name in sequence(_CALL, "requested_output_names", names, "str")
    ]
    if "" in checked:
        raise TritonModelException("Requested output name " + whose)
    return tuple(dict.fromkeys(checked))


def _checked_correlation_id(correlation_id: Any) -> Union[int, str]:
    if correlation_id is None:
        incompatible(_CALL, "correlation_id", "an int or a str", correlation_id)
    if isinstance(correlation_id, str):
        return text(_CALL, "correlation_id", correlation_id)
    if not isinstance(correlation_id, int):
        raise TritonModelException(f"Correlation ID must be integer or string, not {type(correlation_id).__name__}")
    if not 0 <= correlation_id <= UINT64_MAX:
        raise RuntimeError(f"Correlation ID must fit into 64 bits without a sign, it is {correlation_id}")
    return int(correlation_id)


def _preference(argument: str, value: Any, expected: type) -> Any:
    if value is _ANYWHERE:
        return None
    if not isinstance(value, expected):
        incompatible(_CALL, argument, "of type " + expected.__name__, value)
    return value
