"""Answers one request with generated text: whole, or in pieces as they are there."""

from typing import Any, List

import numpy as np

from pybackend_backends.transformers.generation import Generator, Piece
from pybackend_backends.transformers.sampling import SamplingError, read_sampling, settings_of_request
from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest, get_input_tensor_by_name
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL
from pybackend_sdk.tensor import Tensor


def answer_with_text(request: InferenceRequest, generator: Generator, default_max_tokens: int) -> None:
    """Generate, and send through the request's response sender. An error is sent, not raised."""
    sender = request.get_response_sender()
    try:
        _answer(request, generator, default_max_tokens)
    except SamplingError as error:
        sender.send(InferenceResponse(error=TritonError(str(error), TritonError.INVALID_ARG)), FINAL)
    except Exception as error:  # noqa: BLE001  the library raises anything
        sender.send(InferenceResponse(error=TritonError(f"{type(error).__name__}: {error}")), FINAL)


def _answer(request: InferenceRequest, generator: Generator, default_max_tokens: int) -> None:
    sender = request.get_response_sender()
    prompt = _text(request, "text_input")
    streams = _truth(request, "stream", default=False)
    # Clients of a stream have the prompt already.
    excludes = _truth(request, "exclude_input_in_output", default=streams)
    if streams and not excludes:
        raise SamplingError("When streaming, `exclude_input_in_output` = False is not allowed.")
    given = settings_of_request(_text(request, "sampling_parameters"), request.parameters())
    sampling = read_sampling(given, default_max_tokens)
    form = _ResponseForm(request)

    def send(piece: Piece) -> None:
        sender.send(form.response(piece, generator.prompt_tokens))

    last = generator.run(prompt, sampling, send if streams else None, sender.is_cancelled)
    if sender.is_cancelled():
        error = TritonError("The request was cancelled while its text was generated.", TritonError.CANCELLED)
        sender.send(InferenceResponse(error=error), FINAL)
        return
    if not excludes:
        last = last._replace(text=prompt + last.text)
    sender.send(form.response(last, generator.prompt_tokens), FINAL)


class _ResponseForm:
    """Which outputs a request wants beside the text."""

    def __init__(self, request: InferenceRequest) -> None:
        self._finish_reason = _truth(request, "return_finish_reason", default=False)
        self._input_tokens = _truth(request, "return_num_input_tokens", default=False)
        self._output_tokens = _truth(request, "return_num_output_tokens", default=False)

    def response(self, piece: Piece, prompt_tokens: int) -> InferenceResponse:
        outputs: List[Tensor] = [Tensor("text_output", _strings(piece.text))]
        if self._finish_reason:
            outputs.append(Tensor("finish_reason", _strings(piece.finish_reason)))
        if self._input_tokens:
            outputs.append(Tensor("num_input_tokens", np.array([prompt_tokens], np.uint32)))
        if self._output_tokens:
            outputs.append(Tensor("num_output_tokens", np.array([piece.tokens], np.uint32)))
        return InferenceResponse(outputs)


def _strings(text: str) -> "np.ndarray[Any, Any]":
    return np.array([text.encode("utf-8")], np.object_)


def _text(request: InferenceRequest, name: str) -> str:
    tensor = get_input_tensor_by_name(request, name)
    if tensor is None:
        return ""
    elements: List[bytes] = tensor.as_numpy().ravel().tolist()
    try:
        return elements[0].decode("utf-8")
    except UnicodeDecodeError:
        raise SamplingError(f"Input '{name}' is not UTF-8.") from None


def _truth(request: InferenceRequest, name: str, *, default: bool) -> bool:
    tensor = get_input_tensor_by_name(request, name)
    return default if tensor is None else bool(tensor.as_numpy().ravel()[0])
