"""``InferenceResponseSender``: answers a request independently of ``execute``'s return value."""

from typing import Optional

from pybackend_sdk.arguments import UINT32_MAX, incompatible, integer
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_stream import ResponseStream

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    """Answers one request independently of ``execute``'s return value; from ``request.get_response_sender()`` only."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_stream")

    _stream: Optional[ResponseStream]

    def __init__(self) -> None:
        raise TypeError("InferenceResponseSender: No constructor defined! Use request.get_response_sender().")

    @classmethod
    def _create(cls, stream: Optional[ResponseStream]) -> "InferenceResponseSender":
        """Make the sender of a request.

        Args:
            stream: receives the responses; None for a request that the model built, which has no client.
        """
        sender = cls.__new__(cls)
        sender._stream = stream
        return sender

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both.

        Args:
            response: may be None only together with the flag.
            flags: ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` on the last call, else 0.

        Raises:
            TypeError: an argument has the wrong type.
            TritonModelException: the request's state does not allow this response, or the stream is closed.
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
        if self._stream is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._stream.send(response, flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client no longer waits for a response."""
        return self._stream is not None and self._stream.is_cancelled()
