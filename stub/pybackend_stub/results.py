"""Turns responses into results: outputs placed for the host, or an error as data."""

from typing import Callable, Sequence

from pybackend_sdk.execution import prune
from pybackend_sdk.response import InferenceResponse
from pybackend_stub.channel import MOST_TEXT, shortened
from pybackend_stub.tensor_io import OutputMemoryExhausted, OutputTail, OutputWriter
from pybackend_wire.errors import ErrorCode
from pybackend_wire.messages import Failure, RequestResult


class ResultWriter:
    """Turns responses and exceptions into :class:`pybackend_wire.messages.RequestResult`. Any thread may use it.

    Args:
        writer: places tensors.
        instance_name: for messages.
        format_error: formats an exception as text.
    """

    def __init__(
        self, writer: OutputWriter, instance_name: str, format_error: "Callable[[BaseException], str]"
    ) -> None:
        self.instance_name = instance_name
        self.format_error = format_error
        self._writer = writer

    def response(
        self,
        response: InferenceResponse,
        requested_output_names: "Sequence[str]",
        tail: OutputTail,
        most_text: int = MOST_TEXT,
    ) -> RequestResult:
        """Turn one response into a result, with its outputs copied to memory that the host reads.

        Args:
            response: the model's response.
            requested_output_names: outputs to send; empty for all.
            tail: of the frame that will carry the result.
            most_text: most characters of the error or the parameters: frames are bounded.
        """
        error = response._error
        if error is not None:
            return self.failure(int(error.code()), str(error.message()), most_text)
        parameters = response._parameters or None
        if parameters is not None:
            length = sum(len(key) + len(value) for key, value in parameters.items() if isinstance(value, str))
            if length > most_text:
                message = f"response parameters of {length} characters are too long, at most {most_text} can be sent"
                return self.failure(ErrorCode.INTERNAL, self.prefixed(message), most_text)
        try:
            places = self._writer.write(prune(response, requested_output_names), tail)
        except OutputMemoryExhausted as exhausted:
            return self.failure(ErrorCode.UNAVAILABLE, str(exhausted), most_text)
        except BaseException as failed:  # noqa: BLE001  a tensor with unreadable bytes fails only this request
            return self.failure(ErrorCode.INTERNAL, self.prefixed(self.format_error(failed)), most_text)
        return RequestResult(None, places, parameters)

    @staticmethod
    def failure(code: int, message: str, most_text: int = MOST_TEXT) -> RequestResult:
        """Make a result with an error."""
        return RequestResult(Failure(code, shortened(message, most_text)), [], None)

    def raised(self, error: BaseException) -> str:
        """Return the error text for requests whose ``execute`` raised or broke the rules."""
        return self.prefixed(self.format_error(error))

    def prefixed(self, message: str) -> str:
        """Return the error text for any failure in an execution."""
        return f"Failed to process the request(s) for model '{self.instance_name}', message: {message}"


def text_length(result: RequestResult) -> int:
    """Count the characters of a result's error and parameters."""
    if result.error is not None:
        return len(result.error.message)
    if result.parameters is None:
        return 0
    return sum(len(key) + len(value) for key, value in result.parameters.items() if isinstance(value, str))
