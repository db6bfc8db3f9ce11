"""Translates the sampling parameters of a request into vLLM's, with checked types."""

import re
from importlib import import_module
from typing import Any, Dict, Mapping

from pybackend_backends.text_requests import RequestError
from pybackend_sdk.spelling import closest

_INTERNAL = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
"""Fields that the backend or vLLM itself sets."""

ADAPTER = "lora_name"
"""The adapter to use: the backend's own parameter among vLLM's."""

_GRAMMAR, _OLD_GRAMMAR = "structured_outputs", "guided_decoding"


class SamplingReader:
    """Reads sampling parameters for the installed version of vLLM."""

    def __init__(self) -> None:
        module = import_module("vllm.sampling_params")
        self._class = module.SamplingParams
        self._kinds = module.RequestOutputKind
        self._grammar_class = getattr(module, "StructuredOutputsParams", None)
        self._convert = import_module("msgspec").convert  # the library of vLLM's own parameters
        self._types: Dict[str, Any] = {
            name: kind
            for name, kind in self._class.__annotations__.items()
            if not name.startswith("_") and name not in _INTERNAL
        }

    def is_known(self, name: str) -> bool:
        """Whether a request parameter is a sampling parameter."""
        return name in self._types or name in {ADAPTER, _OLD_GRAMMAR}

    def read(self, given: Mapping[str, Any], *, streams: bool, wants_likelihood: bool) -> Any:
        """Make vLLM's ``SamplingParams``.

        Args:
            given: values by name, without the adapter; text stands for the number or truth that it spells.
            streams: whether the client wants each piece of text, rather than all of it at the end.
            wants_likelihood: whether the client asks for the sum of log probabilities, which the engine then computes.

        Raises:
            RequestError: a name is unknown, or a value is of another type or out of bounds.
        """
        values = {name: self._value(name, value) for name, value in self._renamed(given).items()}
        if wants_likelihood and values.get("logprobs") is None:
            values["logprobs"] = 0  # of the chosen tokens only
        values["output_kind"] = self._kinds.DELTA if streams else self._kinds.FINAL_ONLY
        try:
            return self._class(**values)
        except Exception as error:  # noqa: BLE001  its class differs between versions
            raise RequestError(f"vLLM refuses the sampling parameters: {error}") from None

    @staticmethod
    def _renamed(given: Mapping[str, Any]) -> Dict[str, Any]:
        """Clients of Triton's backend know the constraints on the text by an older name."""
        return {(_GRAMMAR if name == _OLD_GRAMMAR else name): value for name, value in given.items()}

    def _value(self, name: str, value: Any) -> Any:
        if name not in self._types:
            near = closest(name, self._types)
            advice = f"did you mean {near}?" if near else f"there are {', '.join(self._types)}."
            raise RequestError(f"unknown sampling parameter '{name}': {advice}")
        if name == _GRAMMAR:
            return self._grammar(value)
        kind = self._types[name]
        try:
            return self._convert(value, kind, strict=False)
        except self._mistakes() as error:
            raise RequestError(
                f"sampling parameter '{name}' must be {_readable(kind)}, it is {value!r} ({error})"
            ) from None
        except TypeError:  # a type that only vLLM itself can check
            return value

    @staticmethod
    def _mistakes() -> Any:
        return import_module("msgspec").ValidationError

    def _grammar(self, value: Any) -> Any:
        import json

        try:
            constraints = json.loads(value) if isinstance(value, str) else value
            return self._grammar_class(**constraints) if self._grammar_class is not None else constraints
        except Exception as error:  # noqa: BLE001  likewise
            raise RequestError(f"sampling parameter '{_GRAMMAR}' has no meaning to vLLM: {error}") from None


def _readable(kind: Any) -> str:
    """A type as authors of requests write it."""
    return re.sub(r"typing\.|<class '([^']*)'>", r"\1", str(kind)).replace("NoneType", "None")
