"""A test's request to a model, checked against the configuration and laid out as by a server, and its responses as they arrive.

On a request's path this module takes the place of a server's front end. Messages begin like the server's.
"""

import queue
import warnings
from typing import AbstractSet, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_testing.configuration import Signature, TensorSpec, listed, nearest, shape_text
from pybackend_testing.errors import InputError
from pybackend_wire.bytes_tensor import encode_elements
from pybackend_wire.dtypes import BY_NUMPY, DATATYPES
from pybackend_wire.messages import RequestOptions


class Request(NamedTuple):
    """One request.

    Attributes:
        inputs: by name: arrays; other values that ``numpy.asarray`` takes, in the configured datatype; or tensors of
            ``pb_utils``.
        outputs: names of the requested outputs; None for all.
        request_id: the client's id.
        correlation_id: of the sequence, 0 for none.
        parameters: names to ``bool``, ``int``, ``float`` or ``str``.
        timeout_us: in microseconds, passed to the model; it has no other effect.
        priority: 1 is the highest, 0 the model's default.
        flags: ``TRITONSERVER_REQUEST_FLAG_*`` bits.
    """

    inputs: Mapping[str, Any]
    outputs: Optional[Sequence[str]] = None
    request_id: str = ""
    correlation_id: Union[int, str] = 0
    parameters: Optional[Mapping[str, Any]] = None
    timeout_us: int = 0
    priority: int = 0
    flags: int = 0


class Arrival(NamedTuple):
    """A response, the final flag, or both.

    The response's outputs are copies made when it was sent; ``unknown`` are names of outputs that the configuration
    does not have. The exception is one that the model raised instead of answering.
    """

    response: Optional[InferenceResponse]
    final: bool
    unknown: Sequence[str] = ()
    exception: Optional[BaseException] = None


class Exchange:
    """A request and its responses."""

    def __init__(
        self,
        signature: Signature,
        inputs: List[Tensor],
        requested: Tuple[str, ...],
        batch_size: int,
        options: RequestOptions,
    ) -> None:
        self.inputs = inputs
        """The tensors, until the request is sent; then views of what the model may change, if it is executed again."""
        self.places: Optional[List[Any]] = None
        """The tensors' places for the model's process, once they have been written there."""
        self.segment = 0
        """The segment that holds them."""
        self.requested = requested
        self.dispensable: AbstractSet[str] = frozenset()
        """The requested outputs that may be missing."""
        self.batch_size = batch_size
        self.options = options
        self.execution = 0
        """The number of its execution, 0 until it is sent."""
        self.cancelled = False
        self.ended = False
        """``execute`` was called and has returned, or its coroutine if the model answers once."""
        self.finished = False
        """The final flag was sent."""
        self.on_cancel: Callable[[], None] = lambda: None
        self.exception: Optional[BaseException] = None
        """The exception that ``execute`` raised."""
        self._signature = signature
        self._parents: Sequence[Exchange] = ()
        self._children: List[Exchange] = []
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()  # the garbage collector may put into it

    def answer(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Deliver what the model sent: a response, the final flag, or both."""
        unknown: Sequence[str] = ()
        exception = None
        if response is not None:
            if response.has_error():
                exception = self.exception
            outputs, specs = response._output_tensors, self._signature.outputs
            unknown = [tensor.name() for tensor in outputs if tensor.name() not in specs]
            response._output_tensors = [tensor for tensor in outputs if tensor.name() in specs]
            for tensor in response._output_tensors:
                tensor._shape = list(specs[tensor.name()].shape_for_client(tensor._shape))
        self._put(Arrival(response, final, unknown, exception))

    def fail(self, error: TritonError, exception: Optional[BaseException] = None) -> None:
        self._put(Arrival(InferenceResponse(error=error), final=True, exception=exception))

    def _put(self, arrival: Arrival) -> None:
        self.finished = self.finished or arrival.final
        self._arrivals.put(arrival)

    def receive(self, wait_s: float) -> Optional[Arrival]:
        try:
            return self._arrivals.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Stop waiting. BLS calls made for this request alone are cancelled with it."""
        self.cancelled = True
        self.on_cancel()
        for child in list(self._children):
            if all(parent.cancelled for parent in child._parents):
                child.cancel()

    def serve(self, parents: "Sequence[Exchange]") -> None:
        """Tie this BLS call to the requests that it serves: it is cancelled once all of these are."""
        self._parents = parents
        for parent in parents:
            parent._children.append(self)
        if parents and all(parent.cancelled for parent in parents):
            self.cancel()


def exchange_of(request: Request, signature: Signature) -> Exchange:
    """Turn a test's request into an exchange."""
    tensors, batch_size = input_tensors(signature, request.inputs)
    options = RequestOptions(
        request.request_id,
        request.correlation_id,
        request.flags,
        request.priority,
        request.timeout_us,
        _parameters(request.parameters),
    )
    return Exchange(signature, tensors, requested_outputs(signature, request.outputs), batch_size, options)


def request_of(request: InferenceRequest, model_name: str) -> Request:
    """Turn a model's BLS request into a test's request."""
    inputs = {tensor.name(): tensor for tensor in request.inputs()}
    if len(inputs) != len(request.inputs()):
        raise InputError(f"an input is given twice for model '{model_name}'")
    return Request(
        inputs,
        request._requested_output_names,
        request.request_id(),
        request.correlation_id(),
        request._parameters,
        request.timeout(),
        request.priority(),
        request.flags(),
    )


def _parameters(parameters: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    for name, value in (parameters or {}).items():
        if not isinstance(value, (bool, int, float, str)):
            raise InputError(
                f"parameter {name!r} of a request is {type(value).__name__}: clients can send bool, int, float and str"
            )
    return dict(parameters) if parameters else None


_NAMES = {"O": "BYTES", "S": "BYTES", "U": "BYTES"}


def input_tensors(signature: Signature, values: Mapping[str, Any]) -> Tuple[List[Tensor], int]:
    """Make the tensors of a request as a model receives them, in separate memory.

    Returns also the size of the batch, or 1.
    """
    given = {name: value for name, value in values.items() if value is not None}
    _check_names(signature, given)
    tensors, batch_size = [], None
    for name, value in given.items():
        spec = signature.inputs.get(name)
        tensor = _tensor(signature, spec, name, value)
        if spec is not None and signature.max_batch_size:
            batch_size = _check_batch(signature, name, tensor.shape(), batch_size)
        if spec is not None:
            _check_shape(signature, spec, tensor.shape())
            tensor._shape = list(spec.shape_for_model(tensor.shape()))
        tensors.append(tensor)
    return tensors, 1 if batch_size is None else batch_size


def requested_outputs(signature: Signature, names: "Optional[Sequence[str]]") -> Tuple[str, ...]:
    """Return the outputs to send: all configured ones if none are named."""
    if isinstance(names, str):
        names = [names]
    for name in names or ():
        if name not in signature.outputs:
            raise InputError(
                f"unexpected inference output '{name}' for model '{signature.model_name}'.{nearest(name, signature.outputs)} "
                f"Its outputs are {listed(signature.outputs.values())}."
            )
    return tuple(dict.fromkeys(names or signature.outputs))


def _check_names(signature: Signature, given: Mapping[str, Any]) -> None:
    inputs, name_of_model = signature.inputs, signature.model_name
    for name in given:
        if name not in inputs and name not in signature.controls:
            missing = [other for other in inputs if other not in given]
            raise InputError(
                f"unexpected inference input '{name}' for model '{name_of_model}'.{nearest(name, missing or inputs)} "
                f"Its inputs are {listed(inputs.values())}."
            )
    missing = [name for name, spec in inputs.items() if not spec.optional and name not in given]
    if missing:
        required = sum(not spec.optional for spec in inputs.values())
        count = (
            f"{len(inputs)} inputs"
            if required == len(inputs)
            else f"number of inputs between {required} and {len(inputs)}"
        )
        raise InputError(
            f"expected {count} but got {len(given)} inputs for model '{name_of_model}'. Got input(s) {_quoted(given)}, but "
            f"missing required input(s) {_quoted(missing)}. Please provide all required input(s). Its inputs are "
            f"{listed(inputs.values())}."
        )


def _quoted(names: Any) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


# --- Values ---------------------------------------------------------------------------------------------------------


def _tensor(signature: Signature, spec: Optional[TensorSpec], name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        datatype, shape, data = value._datatype, value.shape(), wire_bytes(value)
    else:
        array = value if isinstance(value, np.ndarray) else _array_of(signature, spec, name, value)
        datatype, shape = _datatype_of(signature, spec, name, array), list(array.shape)
        data = _serialised(array, datatype)
    if spec is not None and datatype != spec.datatype:
        raise InputError(
            f"inference input '{name}' data-type is '{datatype}', but model '{signature.model_name}' expects "
            f"'{spec.datatype}'{_cast_advice(spec, value)}"
        )
    return Tensor._from_wire(name, datatype, shape, data)


def wire_bytes(tensor: Tensor) -> bytearray:
    """Return a copy of a tensor's bytes."""
    payload = tensor._payload()
    return bytearray(payload.tobytes() if isinstance(payload, np.ndarray) else memoryview(payload).cast("B"))


def _array_of(signature: Signature, spec: Optional[TensorSpec], name: str, value: Any) -> Any:
    """Make an array of a Python value, in the configured datatype if nothing is lost."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older NumPy turns lists of several lengths into arrays of lists
            array = np.asarray(value)
    except (ValueError, Warning) as error:
        raise InputError(f"input '{name}' for model '{signature.model_name}' is not an array: {error}") from None
    if spec is None or (array.dtype.kind == "O" and spec.datatype != "BYTES"):
        return array
    wanted = DATATYPES[spec.datatype].numpy
    if spec.datatype == "BYTES":
        return np.asarray(value, dtype=object)
    if wanted is None or array.dtype == wanted:
        return array
    if not array.size or (wanted.kind == "f" and array.dtype.kind in "iuf"):
        return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iu" and np.array_equal(array.astype(wanted), array):
        return array.astype(wanted)
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:60] + "..."
    raise InputError(
        f"input '{name}' for model '{signature.model_name}': {shown} does not fit {spec.datatype} without loss"
    )


def _datatype_of(signature: Signature, spec: Optional[TensorSpec], name: str, array: "np.ndarray") -> str:
    row = BY_NUMPY.get(array.dtype.newbyteorder("="))
    if row is not None:
        if spec is not None and spec.datatype == "BF16" and row.name == "UINT16":
            return "BF16"
        return row.name
    if array.dtype.kind in _NAMES:
        return "BYTES"
    raise InputError(
        f"input '{name}' for model '{signature.model_name}' has dtype {array.dtype}, which has no datatype"
        f"{_cast_advice(spec, array)}"
    )


def _serialised(array: "np.ndarray", datatype: str) -> bytearray:
    if datatype == "BYTES":
        return bytearray(encode_elements(array.ravel().tolist()))
    return bytearray(array.astype(array.dtype.newbyteorder("="), copy=False).tobytes())


def _cast_advice(spec: Optional[TensorSpec], value: Any) -> str:
    if spec is None:
        return ""
    if spec.datatype == "BF16":
        return ": pass the bits as an array of numpy.uint16, or a Tensor made by from_dlpack"
    if spec.datatype == "BYTES":
        return ": pass an array of strings, e.g. numpy.array([...], dtype=object)"
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OSU":
        return f": pass an array of dtype numpy.{DATATYPES[spec.datatype].numpy}"
    return f": pass array.astype(numpy.{DATATYPES[spec.datatype].numpy})"


# --- Shapes ---------------------------------------------------------------------------------------------------------


def _check_batch(signature: Signature, name: str, shape: "Sequence[int]", batch_size: Optional[int]) -> int:
    model, most = signature.model_name, signature.max_batch_size
    if not shape:
        raise InputError(
            f"input '{name}' has no shape but model requires batch dimension for '{model}': {_batch_advice(most)}"
        )
    if batch_size is not None and shape[0] != batch_size:
        raise InputError(
            f"input '{name}' batch size does not match other inputs for '{model}': its first dimension is {shape[0]}, that "
            f"of the inputs before it {batch_size}"
        )
    if shape[0] > most and len(shape) == len(signature.inputs[name].dims):
        raise InputError(
            f"inference request batch-size must be <= {most} for '{model}': the first dimension of input '{name}' is "
            f"{shape[0]}"
        )
    return shape[0]


def _check_shape(signature: Signature, spec: TensorSpec, shape: "Sequence[int]") -> None:
    reason = shape_problem(spec, shape, signature.max_batch_size)
    if reason is not None:
        raise InputError(
            f"unexpected shape for input '{spec.name}' for model '{signature.model_name}'. Expected "
            f"{shape_text(spec.dims)}, got {shape_text(shape)}. {reason}"
        )


def shape_problem(spec: TensorSpec, shape: "Sequence[int]", max_batch_size: int) -> Optional[str]:
    """Explain in a sentence how a shape differs from the configured one; None if it does not."""
    if len(shape) != len(spec.dims):
        count = f"{len(shape)} dimension{'' if len(shape) == 1 else 's'}"
        reason = f"It has {count}, not {len(spec.dims)}"
        if max_batch_size and len(shape) == len(spec.dims) - 1:
            reason += f": {_batch_advice(max_batch_size)}"
        return reason + "."
    for index, (wanted, size) in enumerate(zip(spec.dims, shape)):
        if wanted not in (-1, size):
            return f"Dimension {index} is {size}, not {wanted}."
    return None


def _batch_advice(max_batch_size: int) -> str:
    return (
        f"max_batch_size is {max_batch_size}, so every tensor has a batch dimension in front of its dims: "
        "array[numpy.newaxis] is a batch of one"
    )
