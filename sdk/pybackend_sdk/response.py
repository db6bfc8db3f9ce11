"""``InferenceResponse``, what ``execute`` returns, and the sender for those that leave it by another way."""

from typing import Any, Callable, List, NoReturn, Optional, Sequence

from pybackend_sdk.arguments import UINT32_MAX, incompatible, integer, sequence
from pybackend_sdk.error import TritonError, TritonModelException
from pybackend_sdk.parameters import Parameters, checked_parameters, parameters_json
from pybackend_sdk.tensor import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponse:
    """The answer to one request: output tensors, or an error.

    Args:
        output_tensors: the outputs. Ignored where there is an error.
        error: what failed, None for success.
        parameters: names to ``bool``, ``int`` or ``str``; clients see them beside the outputs.

    Raises:
        TypeError: an argument of another type; None is accepted for ``error`` and ``parameters`` only.
        TritonModelException: an output that is None, parameters that cannot be sent.
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
    """The response's first output of that name, None if it has none."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def _listed(output_tensors: Any) -> List[Tensor]:
    return sequence("InferenceResponse", "output_tensors", output_tensors, "Tensor")


def _refuse(tensor: Any) -> NoReturn:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    incompatible("InferenceResponse", "output_tensors", "a sequence of Tensor", tensor)


class InferenceResponseSender:
    """Answers one request from outside ``execute``'s return value; from ``request.get_response_sender()`` only."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_is_cancelled", "_send")

    _send: "Optional[Callable[[Optional[InferenceResponse], int], None]]"
    _is_cancelled: "Optional[Callable[[], bool]]"

    def __init__(self) -> None:
        raise TypeError("InferenceResponseSender: No constructor defined! Use request.get_response_sender().")

    @classmethod
    def _create(
        cls,
        send: "Optional[Callable[[Optional[InferenceResponse], int], None]]",
        is_cancelled: "Optional[Callable[[], bool]]",
    ) -> "InferenceResponseSender":
        """Make the sender of a request.

        Args:
            send: sends a response, or none, with flags; raises TritonModelException for what must not be sent.
                None for a request that the model has built, which nobody waits for.
            is_cancelled: whether the client no longer waits; None like ``send``.
        """
        sender = cls.__new__(cls)
        sender._send = send
        sender._is_cancelled = is_cancelled
        return sender

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both.

        Args:
            response: None only together with the flag.
            flags: ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` on the last call, else 0.

        Raises:
            TypeError: an argument of another type.
            TritonModelException: this must not be sent, or not any more.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            incompatible("send", "response", "an InferenceResponse", response)
        flags = integer("send", "flags", flags, 0, UINT32_MAX)
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._send is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether the client no longer waits for a response."""
        return self._is_cancelled is not None and self._is_cancelled()
