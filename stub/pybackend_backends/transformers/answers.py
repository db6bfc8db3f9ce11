"""Reads requests for generated text, and sends their answers: whole, or in pieces as they are there."""

from typing import List

import numpy as np

from pybackend_backends.text_requests import (
    FINAL,
    RequestError,
    excludes_prompt,
    refuse,
    settings_of,
    strings,
    text_of,
    truth_of,
)
from pybackend_backends.transformers.generation import Generator
from pybackend_backends.transformers.receivers import Piece, Receiver
from pybackend_backends.transformers.sampling import is_setting, read_sampling
from pybackend_sdk.backend import offer
from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor


def begin_text(request: InferenceRequest, generator: Generator, default_max_tokens: int) -> None:
    """Begin a request, which is answered through its response sender. An error is sent, not raised."""
    try:
        prompt = text_of(request, "text_input")
        streams = truth_of(request, "stream")
        prefix = "" if excludes_prompt(request, streams) else prompt
        sampling = read_sampling(settings_of(request, is_setting), default_max_tokens)
        tokens = generator.tokens_of(prompt)
        generator.submit(tokens, sampling, Answer(request, streams, prefix, len(tokens)))
    except RequestError as error:
        refuse(request.get_response_sender(), str(error))
    except Exception as error:  # noqa: BLE001  tokenizers raise anything
        refuse(request.get_response_sender(), f"{type(error).__name__}: {error}", TritonError.INTERNAL)


class Answer(Receiver):
    """Sends the text of a request.

    Args:
        streams: whether each piece is a response.
        prefix: what a whole answer begins with.
    """

    def __init__(self, request: InferenceRequest, streams: bool, prefix: str, prompt_tokens: int) -> None:
        self.streams = streams
        self._sender = request.get_response_sender()
        self._prefix = prefix
        self._prompt_tokens = prompt_tokens
        self._finish_reason = truth_of(request, "return_finish_reason")
        self._input_tokens = truth_of(request, "return_num_input_tokens")
        self._output_tokens = truth_of(request, "return_num_output_tokens")

    def offer(self, piece: Piece) -> bool:
        return offer(self._sender, self._response(piece))

    def end(self, piece: Piece) -> None:
        if self.is_cancelled():
            self.cancel()
        else:
            self._sender.send(self._response(piece._replace(text=self._prefix + piece.text)), FINAL)

    def cancel(self) -> None:
        refuse(self._sender, "The request was cancelled while its text was generated.", TritonError.CANCELLED)

    def fail(self, error: Exception) -> None:
        refuse(self._sender, f"{type(error).__name__}: {error}", TritonError.INTERNAL)

    def is_cancelled(self) -> bool:
        return self._sender.is_cancelled()

    def _response(self, piece: Piece) -> InferenceResponse:
        outputs: List[Tensor] = [Tensor("text_output", strings([piece.text]))]
        if self._finish_reason:
            outputs.append(Tensor("finish_reason", strings([piece.finish_reason])))
        if self._input_tokens:
            outputs.append(Tensor("num_input_tokens", np.array([self._prompt_tokens], np.uint32)))
        if self._output_tokens:
            outputs.append(Tensor("num_output_tokens", np.array([piece.tokens], np.uint32)))
        return InferenceResponse(outputs)
