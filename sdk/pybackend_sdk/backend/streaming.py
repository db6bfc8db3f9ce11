"""Sends the responses of many streams from one thread, which no slow receiver may hold up."""

from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import InferenceResponseSender


def offer(sender: InferenceResponseSender, response: InferenceResponse) -> bool:
    """Send a response that is not the last one, unless its receiver is slow. ``sender.send`` would wait then.

    Args:
        sender: of a request to a decoupled model.
        response: to send.

    Returns:
        Whether it was sent. If not, offer it again later, alone or joined with what comes after it.

    Raises:
        TritonModelException: the final response was sent before, or the server is gone.
    """
    stream = sender._stream
    return stream is None or stream.offer(response)
