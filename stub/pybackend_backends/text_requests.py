"""Requests for generated text, as Triton's vLLM backend defined them: what the backends read of them alike."""

import json
from typing import Any, Callable, Dict, List

import numpy as np

from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest, get_input_tensor_by_name
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.response_sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponseSender
from pybackend_wire.errors import ErrorCode

FINAL = TRITONSERVER_RESPONSE_COMPLETE_FINAL


class RequestError(Exception):
    """An input or a setting of a request has no meaning; ``str()`` is the sentence for its client."""


def text_of(request: InferenceRequest, name: str) -> str:
    """The text of an input, empty if the request leaves it out.

    Raises:
        RequestError: it is not UTF-8.
    """
    texts = texts_of(request, name)
    return texts[0] if texts else ""


def texts_of(request: InferenceRequest, name: str) -> List[str]:
    """All texts of an input, none if the request leaves it out.

    Raises:
        RequestError: one is not UTF-8.
    """
    tensor = get_input_tensor_by_name(request, name)
    if tensor is None:
        return []
    elements: List[bytes] = tensor.as_numpy().ravel().tolist()
    try:
        return [element.decode("utf-8") for element in elements]
    except UnicodeDecodeError:
        raise RequestError(f"Input '{name}' is not UTF-8.") from None


def truth_of(request: InferenceRequest, name: str, *, default: bool = False) -> bool:
    """The truth of an input of one element."""
    tensor = get_input_tensor_by_name(request, name)
    return default if tensor is None else bool(tensor.as_numpy().ravel()[0])


def excludes_prompt(request: InferenceRequest, streams: bool) -> bool:
    """Whether the answer leaves the prompt out. Clients of a stream have it already.

    Raises:
        RequestError: a stream would repeat the prompt.
    """
    excludes = truth_of(request, "exclude_input_in_output", default=streams)
    if streams and not excludes:
        raise RequestError("When streaming, `exclude_input_in_output` = False is not allowed.")
    return excludes


def settings_of(request: InferenceRequest, is_known: "Callable[[str], bool]") -> Dict[str, Any]:
    """Merge a request's two places for sampling settings; the input wins over the request parameters.

    Args:
        is_known: whether a name is that of a setting; other request parameters are left out.

    Raises:
        RequestError: the input ``sampling_parameters`` is not a JSON object.
    """
    merged = {name: value for name, value in json.loads(request.parameters()).items() if is_known(name)}
    text = text_of(request, "sampling_parameters")
    if text:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise RequestError("'sampling_parameters' must be a JSON object, such as {\"max_tokens\": 16}.")
        merged.update(given)
    return merged


def strings(texts: "List[str]") -> "np.ndarray[Any, Any]":
    """Texts as the elements of an output."""
    column = np.empty(len(texts), np.object_)
    column[:] = [text.encode("utf-8", "replace") for text in texts]
    return column


def refuse(sender: InferenceResponseSender, message: str, code: ErrorCode = TritonError.INVALID_ARG) -> None:
    """End a request with an error; by default it is the client's mistake."""
    sender.send(InferenceResponse(error=TritonError(message, code)), FINAL)
