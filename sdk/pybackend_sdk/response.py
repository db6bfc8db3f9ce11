"""``InferenceResponse``: the answer that ``execute`` returns or a response sender sends."""

from typing import Any, List, NoReturn, Optional, Sequence

from pybackend_sdk.arguments import incompatible, sequence
from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.parameters import Parameters, checked_parameters, parameters_json
from pybackend_sdk.tensor import Tensor


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
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def _listed(output_tensors: Any) -> List[Tensor]:
    return sequence("InferenceResponse", "output_tensors", output_tensors, "Tensor")


def _refuse(tensor: Any) -> NoReturn:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    incompatible("InferenceResponse", "output_tensors", "a sequence of Tensor", tensor)
