"""The tensors of every model of this backend, and one request, read: the prompt, how to generate, and the form of its responses."""

import base64
import io
import json
import re
from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import numpy as np

from pybackend_backends.text_requests import (
    RequestError,
    chat_of,
    chat_tokens,
    excludes_prompt,
    settings_of,
    strings,
    text_of,
    texts_of,
    truth_of,
)
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.spelling import closest
from pybackend_sdk.tensor import Tensor

_INTERNAL = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
"""Fields that the backend or vLLM itself sets."""

ADAPTER = "lora_name"
"""The adapter to use: the backend's own parameter among vLLM's."""

_GRAMMAR, _OLD_GRAMMAR = "structured_outputs", "guided_decoding"

_FORM = "response_format"
"""The constraint on the text as OpenAI's clients write it."""


class SamplingReader:
    """Reads sampling parameters for the installed version of vLLM."""

    def __init__(self) -> None:
        module = import_module("vllm.sampling_params")
        self._class = module.SamplingParams
        self._kinds = module.RequestOutputKind
        self._grammar_class = getattr(module, "StructuredOutputsParams", None)
        self._msgspec = import_module("msgspec")  # the library of vLLM's own parameters
        self._types: Dict[str, Any] = {
            name: kind
            for name, kind in self._class.__annotations__.items()
            if not name.startswith("_") and name not in _INTERNAL
        }

    def is_known(self, name: str) -> bool:
        return name in self._types or name in {ADAPTER, _OLD_GRAMMAR, _FORM}

    def read(self, given: Mapping[str, Any], *, streams: bool, wants_likelihood: bool) -> Any:
        """Make vLLM's ``SamplingParams``.

        Args:
            given: values by name, without the adapter; text stands for the number or truth that it spells.
            streams: whether the client wants each piece of text, rather than all of it at the end.
            wants_likelihood: whether the client asks for the sum of log probabilities, which the engine then computes.
        """
        # Clients of Triton's backend know the constraints on the text by an older name.
        renamed = {(_GRAMMAR if name == _OLD_GRAMMAR else name): value for name, value in given.items()}
        if _FORM in renamed:
            renamed[_GRAMMAR] = _constraint(renamed.pop(_FORM))
        values = {name: self._value(name, value) for name, value in renamed.items()}
        if wants_likelihood and values.get("logprobs") is None:
            values["logprobs"] = 0  # of the chosen tokens only
        values["output_kind"] = self._kinds.DELTA if streams else self._kinds.FINAL_ONLY
        try:
            return self._class(**values)
        except Exception as error:  # noqa: BLE001  its class differs between versions
            raise RequestError(f"vLLM refuses the sampling parameters: {error}") from None

    def _value(self, name: str, value: Any) -> Any:
        if name not in self._types:
            near = closest(name, self._types)
            advice = f"did you mean {near}?" if near else f"there are {', '.join(self._types)}."
            raise RequestError(f"unknown sampling parameter '{name}': {advice}")
        if name == _GRAMMAR:
            return self._grammar(value)
        kind = self._types[name]
        try:
            return self._msgspec.convert(value, kind, strict=False)
        except self._msgspec.ValidationError as error:
            raise RequestError(
                f"sampling parameter '{name}' must be {_readable(kind)}, it is {value!r} ({error})"
            ) from None
        except TypeError:  # a type that only vLLM itself can check
            return value

    def _grammar(self, value: Any) -> Any:
        try:
            constraints = json.loads(value) if isinstance(value, str) else value
            return self._grammar_class(**constraints) if self._grammar_class is not None else constraints
        except Exception as error:  # noqa: BLE001  likewise
            raise RequestError(f"sampling parameter '{_GRAMMAR}' has no meaning to vLLM: {error}") from None


def _constraint(form: Any) -> Dict[str, Any]:
    """VLLM's words for a form of the answer in OpenAI's words."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_object":
        return {"json_object": True}
    described = form.get("json_schema") if kind == "json_schema" else None
    if isinstance(described, dict) and isinstance(described.get("schema"), dict):
        return {"json": described["schema"]}
    raise RequestError(
        '\'response_format\' must be {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"name": ..., '
        '"schema": {...}}}.'
    )


def _readable(kind: Any) -> str:
    return re.sub(r"typing\.|<class '([^']*)'>", r"\1", str(kind)).replace("NoneType", "None")


class Generation(NamedTuple):
    """A request to the engine: vLLM's ``SamplingParams``, and its ``LoRARequest`` or None.

    The prompt is as vLLM takes it: a dictionary with the text or its tokens, and images if there are some.
    """

    prompt: Dict[str, Any]
    sampling: Any
    adapter: Any
    streams: bool
    form: "ResponseForm"


class GenerationReader:
    """Reads requests.

    ``adapters`` has directories of LoRA adapters by name, and is None if the engine does not enable them. ``tokenizer``
    gives the engine's, for chats.
    """

    def __init__(
        self,
        adapters: Optional[Mapping[str, str]],
        tokenizer: "Callable[[], Any]",
        chat_template: Optional[str] = None,
    ) -> None:
        self._sampling = SamplingReader()
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._adapters = adapters
        self._numbers = {name: number for number, name in enumerate(adapters or (), 1)}

    def read(self, request: InferenceRequest) -> Generation:
        text, chat = text_of(request, "text_input"), chat_of(request)
        prompt: Dict[str, Any] = {"prompt": text}
        if chat is not None:
            prompt = {"prompt_token_ids": chat_tokens(self._tokenizer(), chat, self._chat_template)}
        images = [_image(encoded) for encoded in texts_of(request, "image") if encoded]
        if images:
            prompt["multi_modal_data"] = {"image": images}
        streams = truth_of(request, "stream")
        prefix = "" if excludes_prompt(request, streams) else text
        given = settings_of(request, self._sampling.is_known)
        adapter = self._adapter(given.pop(ADAPTER, None))
        wanted = [name for name in _EXTRAS if truth_of(request, "return_" + name)]
        sampling = self._sampling.read(given, streams=streams, wants_likelihood="cumulative_logprob" in wanted)
        return Generation(prompt, sampling, adapter, streams, ResponseForm(wanted, prefix, sampling.n))

    def _adapter(self, name: Any) -> Any:
        if name is None:
            return None
        if self._adapters is None:
            raise RequestError('LoRA adapters are not enabled: write "enable_lora": true into model.json.')
        if name not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise RequestError(f"LoRA adapter '{name}' is unknown: multi_lora.json has {known}.")
        made = import_module("vllm.lora.request").LoRARequest
        return made(lora_name=name, lora_int_id=self._numbers[name], lora_path=self._adapters[name])


def _image(encoded: str) -> Any:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(base64.b64decode(encoded, validate=True))).convert("RGB")
    except Exception as error:  # noqa: BLE001  Pillow raises many types for a bad image
        raise RequestError(f"'image' must be the Base64 text of an image such as JPEG or PNG: {error}.") from None


class ResponseForm:
    """Turns what the engine says into responses: the outputs that are wanted beside the text, one element for each text.

    A prefix begins each text; ``sequences`` is the number of texts for one prompt.
    """

    def __init__(self, wanted: List[str], prefix: str, sequences: int) -> None:
        self._wanted = wanted
        self._prefix = prefix
        self._sequences = sequences

    def response(self, output: Any) -> InferenceResponse:
        """A response of a ``RequestOutput``. Each output has an element for each text; a text without news is empty."""
        rows: List[Any] = [None] * self._sequences
        for completion in output.outputs:
            rows[completion.index] = completion
        tensors = [Tensor("text_output", strings([self._prefix + (row.text if row else "") for row in rows]))]
        tensors.extend(Tensor(name, _EXTRAS[name](output, rows)) for name in self._wanted)
        return InferenceResponse(tensors)


def _finish_reasons(_: Any, rows: List[Any]) -> Any:
    return strings([str(row.finish_reason if row else None) for row in rows])


def _likelihoods(_: Any, rows: List[Any]) -> Any:
    # None becomes NaN.
    return np.array([row.cumulative_logprob if row else None for row in rows], np.float32)


def _token_likelihoods(_: Any, rows: List[Any]) -> Any:
    return strings([_logprobs_json(row.logprobs if row else None) for row in rows])


def _logprobs_json(logprobs: Any) -> str:
    if logprobs is None:
        return "null"
    return json.dumps(
        [
            {
                str(token): {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.decoded_token}
                for token, each in position.items()
            }
            for position in logprobs
        ],
        ensure_ascii=False,
    )


def _input_tokens(output: Any, _: List[Any]) -> Any:
    return np.array([len(output.prompt_token_ids or ())], np.uint32)


def _output_tokens(_: Any, rows: List[Any]) -> Any:
    return np.array([len(row.token_ids) if row else 0 for row in rows], np.uint32)


_EXTRAS = {
    "finish_reason": _finish_reasons,
    "cumulative_logprob": _likelihoods,
    "logprobs": _token_likelihoods,
    "num_input_tokens": _input_tokens,
    "num_output_tokens": _output_tokens,
}
"""Outputs that a request asks for with ``return_`` before the name."""
