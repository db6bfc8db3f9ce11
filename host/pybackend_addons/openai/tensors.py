"""The inputs and outputs of a model that OpenAI's routes use: by their usual names, or by parameters ``OPENAI_*``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, TensorConfig
from pybackend.modelconfig.signature import ModelSignature
from pybackend.spelling import closest
from pybackend_wire.model_options import OPENAI_PREFIX


@dataclass(frozen=True, slots=True)
class OpenAiTensors:
    """Names of tensors, ``""`` for those that the model lacks. It generates text, or embeds texts, or both."""

    prompt: str  # the text to continue
    chat: str  # a JSON object with the messages of a chat
    settings: str  # a JSON object with what the client says about sampling
    stream: str  # true if the client wants the pieces of the text
    text: str
    finish_reason: str  # why the text ends; empty or ``None`` while it goes on
    prompt_tokens: str
    completion_tokens: str  # in this response
    logprobs: str  # a JSON list with an object for each token
    tool_calls: str  # a JSON list of OpenAI's tool calls
    embedding_text: str
    embedding_tokens: str  # the numbers of a text's tokens
    embedding: str
    chat_parts: frozenset[str]  # the types of parts, beside texts, that messages may have

    @property
    def generates(self) -> bool:
        return bool(self.text)

    @property
    def embeds(self) -> bool:
        return bool(self.embedding and (self.embedding_text or self.embedding_tokens))


def openai_tensors_in(signature: ModelSignature) -> OpenAiTensors | None:
    """The tensors of a signature; None if OpenAI's routes cannot use the model."""
    found = signature.extras.get("openai")
    return found if isinstance(found, OpenAiTensors) else None


class _Role(NamedTuple):
    """What a tensor must be: the parameter that names it, its usual name, and its datatypes."""

    parameter: str
    usual: str
    datatypes: frozenset[str]
    is_input: bool
    dims: frozenset[int] = frozenset({-1, 1})  # an input takes one element, or as many as there are

    @property
    def kind(self) -> str:
        return "input" if self.is_input else "output"


TEXTS = frozenset({"BYTES"})
COUNTS = frozenset({"UINT32", "INT32", "UINT64", "INT64"})
NUMBERS = frozenset({"FP16", "FP32", "FP64"})
"""Datatypes of the tensors, by their kind of contents."""

_TRUTH = frozenset({"BOOL"})
_TOKENS = frozenset({"INT32", "INT64"})

NEEDED_FOR_TEXTS: Final = "an output OPENAI_TEXT_OUTPUT with an input OPENAI_PROMPT_INPUT or OPENAI_CHAT_INPUT"
NEEDED_FOR_EMBEDDINGS: Final = (
    "an output OPENAI_EMBEDDING_OUTPUT with an input OPENAI_EMBEDDING_INPUT or OPENAI_EMBEDDING_TOKENS_INPUT"
)
"""The parameters that name what a route needs at least."""

CHAT_PARTS: Final = "OPENAI_CHAT_PARTS"
"""The parameter by which a model says what messages may have beside texts."""

_ROLES: Mapping[str, _Role] = {
    "prompt": _Role("OPENAI_PROMPT_INPUT", "text_input", TEXTS, True),
    "chat": _Role("OPENAI_CHAT_INPUT", "chat", TEXTS, True),
    "settings": _Role("OPENAI_SETTINGS_INPUT", "sampling_parameters", TEXTS, True),
    "stream": _Role("OPENAI_STREAM_INPUT", "stream", _TRUTH, True),
    "text": _Role("OPENAI_TEXT_OUTPUT", "text_output", TEXTS, False),
    "finish_reason": _Role("OPENAI_FINISH_REASON_OUTPUT", "finish_reason", TEXTS, False),
    "prompt_tokens": _Role("OPENAI_PROMPT_TOKENS_OUTPUT", "num_input_tokens", COUNTS, False),
    "completion_tokens": _Role("OPENAI_COMPLETION_TOKENS_OUTPUT", "num_output_tokens", COUNTS, False),
    "logprobs": _Role("OPENAI_LOGPROBS_OUTPUT", "logprobs", TEXTS, False),
    "tool_calls": _Role("OPENAI_TOOL_CALLS_OUTPUT", "tool_calls", TEXTS, False),
    "embedding_text": _Role("OPENAI_EMBEDDING_INPUT", "text", TEXTS, True),
    "embedding_tokens": _Role("OPENAI_EMBEDDING_TOKENS_INPUT", "input_ids", _TOKENS, True, frozenset({-1})),
    "embedding": _Role("OPENAI_EMBEDDING_OUTPUT", "embedding", NUMBERS, False),
}
assert (*_ROLES, "chat_parts") == tuple(each.name for each in fields(OpenAiTensors))

_TYPE_NAMES = {"BYTES": "TYPE_STRING"}

ALWAYS_TRUE = "exclude_input_in_output"
"""An input that OpenAI's routes set where a model has it: their answers never begin with the prompt."""

ASKS_PREFIX = "return_"
"""Begins the name of an input that asks for an output, if the output's name follows."""


def openai_tensors_of(config: ModelConfig) -> OpenAiTensors | None:
    """The tensors of a completed configuration; None if OpenAI's routes cannot use the model.

    Raises ModelConfigError: a parameter names a tensor that is missing or of another kind, or no route can use them.
    """
    named = {name: text for name, text in config.parameters.items() if name.startswith(OPENAI_PREFIX)}
    known = [*(role.parameter for role in _ROLES.values()), CHAT_PARTS]
    for name in named:
        if name not in known:
            near = closest(name, known)
            raise _error(config, f"parameters {name} is unknown: {f'did you mean {near}?' if near else _all_of(known)}")
    found = {field: _tensor(config, role, named.get(role.parameter)) for field, role in _ROLES.items()}
    parts = frozenset(part.strip() for part in named.get(CHAT_PARTS, "").split(",")) - {""}
    names = {field: "" if tensor is None else tensor.name for field, tensor in found.items()}
    tensors = OpenAiTensors(**names, chat_parts=parts)
    generates = tensors.generates and bool(tensors.prompt or tensors.chat)
    if not named and not _is_complete(config, tensors):
        return None
    if parts and not (tensors.generates and tensors.chat):
        raise _error(config, f"parameters {CHAT_PARTS} needs an input for messages: name it by OPENAI_CHAT_INPUT")
    if named and not (generates or tensors.embeds):
        raise _error(
            config,
            f"parameters {', '.join(sorted(named))} lead nowhere: OpenAI's routes need {NEEDED_FOR_TEXTS}, or {NEEDED_FOR_EMBEDDINGS}",
        )
    if named and not _is_complete(config, tensors):
        unfilled = next(
            each.name for each in config.inputs if not each.optional and each.name not in _sent(config, tensors)
        )
        raise _error(
            config,
            f"input '{unfilled}' is required, and OpenAI's routes do not send it: write optional: true, or name its "
            f"part by one of {', '.join(role.parameter for role in _ROLES.values() if role.is_input)}",
        )
    return tensors


def _tensor(config: ModelConfig, role: _Role, name: str | None) -> TensorConfig | None:
    """The tensor for a role: the one that a parameter names, else the one that has the usual name and is fit."""
    tensors = {each.name: each for each in (config.inputs if role.is_input else config.outputs)}
    tensor = tensors.get(role.usual if name is None else name)
    if name is None:
        return tensor if tensor is not None and _misfit(tensor, role) == "" else None
    if tensor is None:
        near = closest(name, tensors)
        advice = f"did you mean '{near}'?" if near else _all_of([f"'{each}'" for each in tensors])
        raise _error(config, f"parameters {role.parameter} names '{name}', which is no {role.kind}: {advice}")
    misfit = _misfit(tensor, role)
    if misfit:
        raise _error(config, f"parameters {role.parameter} names {role.kind} '{name}', which {misfit}")
    return tensor


def _misfit(tensor: TensorConfig, role: _Role) -> str:
    if tensor.datatype not in role.datatypes:
        expected = " or ".join(sorted(_TYPE_NAMES.get(each, f"TYPE_{each}") for each in role.datatypes))
        return f"must be {expected}, it is {_TYPE_NAMES.get(tensor.datatype, f'TYPE_{tensor.datatype}')}"
    if role.dims == {-1}:
        return "" if tensor.dims == (-1,) else f"must have the dims [-1], its dims are {list(tensor.dims)}"
    if role.is_input and not role.dims.issuperset(tensor.dims):
        return f"must take one element, its dims are {list(tensor.dims)}"
    return ""


def _is_complete(config: ModelConfig, tensors: OpenAiTensors) -> bool:
    """Whether one of the routes sends all the inputs that the model needs."""
    needed = {each.name for each in config.inputs if not each.optional}
    if tensors.embeds and any(needed <= {name} for name in (tensors.embedding_text, tensors.embedding_tokens) if name):
        return True
    return tensors.generates and bool(tensors.prompt or tensors.chat) and needed <= _sent(config, tensors)


def _sent(config: ModelConfig, tensors: OpenAiTensors) -> set[str]:
    sent = {tensors.prompt, tensors.chat, tensors.settings, tensors.stream}
    if tensors.embeds and not tensors.generates:
        sent = {tensors.embedding_text, tensors.embedding_tokens}
    outputs = {each.name for each in config.outputs}
    flags = {
        each.name
        for each in config.inputs
        if each.datatype == "BOOL"
        and (
            each.name == ALWAYS_TRUE or (each.name.startswith(ASKS_PREFIX) and each.name[len(ASKS_PREFIX) :] in outputs)
        )
    }
    return sent | flags


def _all_of(names: list[str]) -> str:
    return f"there are {', '.join(names)}" if names else "there are none"


def _error(config: ModelConfig, message: str) -> ModelConfigError:
    return ModelConfigError(f"model '{config.name}': {message} ({config.source})")
