"""A test's request to a model."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Union

from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.testing.errors import InputError
from pybackend_sdk.testing.exchange import Exchange
from pybackend_sdk.testing.inputs import input_tensors, requested_outputs
from pybackend_sdk.testing.signature import Signature
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


def exchange_of(request: Request, signature: Signature) -> Exchange:
    """Turn a test's request into an exchange.

    Raises:
        InputError: the request does not fit the model.
    """
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
    """Turn a model's BLS request into a test's request.

    Raises:
        InputError: an input appears twice.
    """
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
        0,
        request.flags(),
    )


def _parameters(parameters: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    for name, value in (parameters or {}).items():
        if not isinstance(value, (bool, int, float, str)):
            raise InputError(
                f"parameter {name!r} of a request is {type(value).__name__}: clients can send bool, int, float and str"
            )
    return dict(parameters) if parameters else None
