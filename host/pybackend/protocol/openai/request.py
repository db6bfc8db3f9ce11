"""Requests of OpenAI's routes: checked, and turned into inference requests for the tensors that a model has for them.

Messages, tools and settings of sampling stay the JSON text that they are: the model's process reads them. So nothing here knows
a template, a tokenizer, or what a model can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.openai_tensors import ALWAYS_TRUE, ASKS_PREFIX, OpenAiTensors, openai_tensors_in
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.json.parameters import custom_parameter
from pybackend_wire.bytes_tensor import encode_elements

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bound of a request's body: images in messages are the largest part of honest ones."""

MOST_CHOICES: Final = 128
"""Bound of the texts that one request asks for: its prompts times ``n``."""

MOST_PROMPT_BYTES: Final = 4 * MAX_BODY_BYTES
"""Bound of the prompts of one request, as often as the model gets them."""

MOST_TEXTS: Final = 2048
"""Bound of the texts that one request embeds."""

_MOST_STOPS: Final = 16
_MOST_TOP: Final = 20
_MOST_MEMBERS: Final = 256

_MOST_STOP_CHARACTERS: Final = 1000
"""The end of each piece is compared with the beginnings of all stops."""

_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)

_Texts = str | list[str]


class OpenAiError(InferenceError):
    """A request that OpenAI's routes refuse, with the member that is wrong and OpenAI's code, ``""`` for none."""

    def __init__(
        self, message: str, param: str = "", code: ErrorCode = ErrorCode.INVALID_ARG, openai_code: str = ""
    ) -> None:
        super().__init__(message, code)
        self.param = param
        self.openai_code = openai_code


class StreamOptions(Struct):
    """The client's wishes for a stream."""

    include_usage: bool | None = None


class Members:
    """The members of a request's object; each is taken once, and the others belong to the model."""

    def __init__(self, body: bytes) -> None:
        try:
            self._raw: dict[str, Raw] = _members(body)
        except msgspec.ValidationError:
            raise OpenAiError("the body must be a JSON object") from None
        except _UNREADABLE as error:
            raise OpenAiError(f"the body is no JSON: {error}") from None
        if len(self._raw) > _MOST_MEMBERS:
            raise OpenAiError(f"the body has {len(self._raw)} members, {_MOST_MEMBERS} are the most")
        self._raw = {name: text for name, text in self._raw.items() if bytes(text) != b"null"}

    def has(self, name: str) -> bool:
        return name in self._raw

    def take_raw(self, name: str) -> bytes | None:
        """The JSON text of a member; None if it is missing or null."""
        text = self._raw.pop(name, None)
        return None if text is None else bytes(text)

    def take(self, name: str, kind: Any, expected: str) -> Any:
        """The value of a member; None if it is missing or null. ``expected`` describes the kind to the client."""
        text = self._raw.pop(name, None)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=kind)
        except _UNREADABLE:
            raise OpenAiError(f"'{name}' must be {expected}", name) from None

    def need(self, name: str, kind: Any, expected: str) -> Any:
        value = self.take(name, kind, expected)
        if value is None:
            raise OpenAiError(f"'{name}' is missing: it must be {expected}", name)
        return value

    def drop(self, neutral: Mapping[str, Sequence[bytes] | None]) -> None:
        """Leave out members without a meaning here, and those whose value says nothing."""
        for name, values in neutral.items():
            text = self._raw.get(name)
            if text is not None and (values is None or bytes(text) in values):
                del self._raw[name]

    def rest(self) -> dict[str, bytes]:
        """The JSON texts of all that is left."""
        return {name: bytes(text) for name, text in self._raw.items()}


_members = msgspec.json.Decoder(dict[str, Raw]).decode

_WITHOUT_EFFECT: Mapping[str, Sequence[bytes] | None] = {
    **dict.fromkeys(
        ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
    ),
    "parallel_tool_calls": None,
    "presence_penalty": (b"0", b"0.0"),
    "frequency_penalty": (b"0", b"0.0"),
    "logit_bias": (b"{}",),
    "stop": (b"[]", b'""'),
    "tools": (b"[]",),
    "best_of": (b"1",),
    "suffix": (b'""',),
    "modalities": (b'["text"]',),
}
"""Members that concern OpenAI's own service, and values of others that say nothing."""

_UNSERVED = {
    "functions": "write them as 'tools'",
    "function_call": "write it as 'tool_choice'",
    "audio": "models answer with text",
    "modalities": "models answer with text",
    "best_of": "use 'n', and choose among the answers",
    "suffix": "models continue a text, and do not fill gaps",
    "prediction": "models take none",
    "web_search_options": "the server searches nothing",
}


class TextRequest(Struct):
    """A request for texts.

    ``prompts`` has a text for each prompt, or the JSON objects of chats. Without ``logprobs`` the client wants none; else it is the
    number of likely tokens beside each.
    """

    model: str
    is_chat: bool
    prompts: list[bytes]
    n: int
    streams: bool
    wants_usage: bool  # at the end of the stream
    echoes: bool
    stops: tuple[bytes, ...]
    logprobs: int | None
    settings: dict[str, bytes]

    @property
    def choice_count(self) -> int:
        return len(self.prompts) * self.n


def parse_text_request(body: bytes, *, is_chat: bool) -> TextRequest:
    """Read a request for texts; raises :class:`OpenAiError`."""
    members = Members(body)
    model = members.need("model", str, "the name of a model")
    members.drop(_WITHOUT_EFFECT)
    for name, advice in _UNSERVED.items():
        if members.has(name):
            raise OpenAiError(f"'{name}' is not supported: {advice}", name)
    n = members.take("n", int, "a whole number")
    n = 1 if n is None else n
    stops = _stops(members)
    streams = members.take("stream", bool, "true or false") or False
    options = members.take("stream_options", StreamOptions, 'an object such as {"include_usage": true}')
    if options is not None and not streams:
        raise OpenAiError("'stream_options' needs \"stream\": true", "stream_options")
    most_tokens = members.take_raw("max_completion_tokens")
    if is_chat:
        logprobs, echoes, prompts = _chat_logprobs(members), False, [_chat(members)]
    else:
        logprobs = members.take("logprobs", int, "a whole number")
        echoes = members.take("echo", bool, "true or false") or False
        prompts = _prompts(members)
    if logprobs is not None and not 0 <= logprobs <= _MOST_TOP:
        raise OpenAiError(
            f"the number of likely tokens must be from 0 to {_MOST_TOP}", "top_logprobs" if is_chat else "logprobs"
        )
    if not 1 <= n <= MOST_CHOICES or n * len(prompts) > MOST_CHOICES:
        raise OpenAiError(f"'n' must be at least 1, and one request can ask for up to {MOST_CHOICES} texts", "n")
    settings = members.rest()
    each_bytes = sum(len(name) + len(text) for name, text in settings.items())
    if n * (sum(map(len, prompts)) + len(prompts) * each_bytes) > MOST_PROMPT_BYTES:
        raise OpenAiError(
            f"the prompts, each with all settings, have more than {MOST_PROMPT_BYTES} bytes, counted 'n' times", "n"
        )
    if most_tokens is not None:
        settings["max_tokens"] = most_tokens
    if logprobs is not None:
        settings["logprobs"] = b"%d" % logprobs
    if stops:
        settings["stop"] = msgspec.json.encode(stops)
    if settings.get("response_format", b"").replace(b" ", b"") == b'{"type":"text"}':
        del settings["response_format"]
    wants_usage = options is not None and bool(options.include_usage)
    encoded = tuple(stop.encode() for stop in stops)
    return TextRequest(model, is_chat, prompts, n, streams, wants_usage, echoes, encoded, logprobs, settings)


def _stops(members: Members) -> tuple[str, ...]:
    stop: str | list[str] | None = members.take("stop", _Texts, "a text or a list of texts")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS or not all(stops):
        raise OpenAiError(f"'stop' must be a text or up to {_MOST_STOPS} texts that are not empty", "stop")
    if any(len(each) > _MOST_STOP_CHARACTERS for each in stops):
        raise OpenAiError(f"a text of 'stop' can have up to {_MOST_STOP_CHARACTERS} characters", "stop")
    return stops


def _chat(members: Members) -> bytes:
    """The chat as one JSON object, which the model's process reads."""
    messages = members.take_raw("messages")
    if messages is None or not messages.startswith(b"[") or messages[1:].lstrip().startswith(b"]"):
        raise OpenAiError(
            '\'messages\' must be a list of messages, such as [{"role": "user", "content": "Hello"}]', "messages"
        )
    parts = [b'"messages":' + messages]
    choice = members.take_raw("tool_choice")
    tools = members.take_raw("tools")
    if tools is not None and not tools.startswith(b"["):
        raise OpenAiError("'tools' must be a list", "tools")
    if tools is not None and choice != b'"none"':
        parts.append(b'"tools":' + tools)
        if choice is not None:
            parts.append(b'"tool_choice":' + choice)
    template = members.take_raw("chat_template_kwargs")
    if template is not None:
        parts.append(b'"chat_template_kwargs":' + template)
    return b"{%b}" % b",".join(parts)


def _chat_logprobs(members: Members) -> int | None:
    wanted = members.take("logprobs", bool, "true or false")
    top = members.take("top_logprobs", int, "a whole number")
    if top and not wanted:
        raise OpenAiError("'top_logprobs' needs \"logprobs\": true", "top_logprobs")
    return (top or 0) if wanted else None


def _prompts(members: Members) -> list[bytes]:
    texts = _texts(members, "prompt", MOST_CHOICES)
    return [text.encode() for text in texts]


def _texts(members: Members, name: str, most: int) -> list[str]:
    raw = members.take_raw(name)
    if raw is None:
        raise OpenAiError(f"'{name}' is missing: it must be a text or a list of texts", name)
    try:
        given = msgspec.json.decode(raw, type=_Texts)
    except _UNREADABLE:
        raise OpenAiError(
            f"'{name}' must be a text or a list of texts; numbers of tokens are not taken", name
        ) from None
    texts = [given] if isinstance(given, str) else given
    if not 0 < len(texts) <= most:
        raise OpenAiError(f"'{name}' has {len(texts)} texts, from 1 to {most} can be", name)
    return texts


class EmbeddingRequest(Struct):
    """A request for the embeddings of texts."""

    model: str
    texts: list[bytes]
    is_base64: bool


def parse_embedding_request(body: bytes) -> EmbeddingRequest:
    """Read a request for embeddings; raises :class:`OpenAiError`."""
    members = Members(body)
    model = members.need("model", str, "the name of a model")
    members.drop(_WITHOUT_EFFECT)
    texts = _texts(members, "input", MOST_TEXTS)
    if not all(texts):
        raise OpenAiError("'input' has an empty text", "input")
    form = members.take("encoding_format", str, '"float" or "base64"')
    if form not in {None, "float", "base64"}:
        raise OpenAiError('\'encoding_format\' must be "float" or "base64"', "encoding_format")
    rest = members.rest()
    if rest:
        name = next(iter(rest))
        raise OpenAiError(f"'{name}' is not supported: the model alone decides about its embeddings", name)
    return EmbeddingRequest(model, [text.encode() for text in texts], form == "base64")


# Inference requests


def text_requests(asked: TextRequest, signature: ModelSignature, version: str) -> list[InferenceRequest]:
    """An inference request for each requested text, prompt by prompt; raises :class:`OpenAiError`."""
    tensors = openai_tensors_in(signature)
    assert tensors is not None
    name = _prompt_input(asked, tensors)
    if asked.logprobs is not None and not tensors.logprobs:
        raise OpenAiError(f"model '{asked.model}' tells no log probabilities", "logprobs")
    requests = []
    for prompt in asked.prompts:
        for place in range(asked.n):
            settings = dict(asked.settings)
            if place and "seed" in settings:  # the same seed would give the same text
                settings["seed"] = _next_seed(settings["seed"], place)
            request = InferenceRequest(signature.model_name, version)
            given = {name: prompt}
            if tensors.prompt and tensors.prompt not in given and not signature.inputs[tensors.prompt].optional:
                given[tensors.prompt] = b""
            if tensors.chat and tensors.chat not in given and not signature.inputs[tensors.chat].optional:
                given[tensors.chat] = b""
            if tensors.settings:
                given[tensors.settings] = b"{%b}" % b",".join(
                    b"%b:%b" % (msgspec.json.encode(key), text) for key, text in settings.items()
                )
            else:
                request.parameters = _parameters(asked.model, settings)
            request.inputs = [
                _element(signature, key, "BYTES", encode_elements([value])) for key, value in given.items()
            ]
            request.inputs += _switches(asked, signature, tensors)
            requests.append(request)
    return requests


def _prompt_input(asked: TextRequest, tensors: OpenAiTensors) -> str:
    name = tensors.chat if asked.is_chat else tensors.prompt
    if tensors.text and name:
        return name
    if not tensors.text:
        raise OpenAiError(f"model '{asked.model}' generates no text: it embeds texts, ask /v1/embeddings", "model")
    if asked.is_chat:
        raise OpenAiError(
            f"model '{asked.model}' takes no messages: ask /v1/completions, or give it an input of TYPE_STRING named "
            "'chat' (or as its parameter OPENAI_CHAT_INPUT says)",
            "model",
        )
    raise OpenAiError(f"model '{asked.model}' takes messages only: ask /v1/chat/completions", "model")


def _next_seed(text: bytes, place: int) -> bytes:
    try:
        return b"%d" % (int(text) + place)
    except ValueError:
        raise OpenAiError("'seed' must be a whole number", "seed") from None


def _parameters(model: str, settings: Mapping[str, bytes]) -> dict[str, ParameterValue] | None:
    """Settings as request parameters, for a model without an input for them."""
    values: dict[str, ParameterValue] = {}
    for name, text in settings.items():
        if name in {"stop", "logprobs"}:
            continue  # the server ends texts by itself
        value: Any = msgspec.json.decode(text)
        if isinstance(value, list | dict):
            raise OpenAiError(
                f"model '{model}' takes no '{name}': it has no input for settings (OPENAI_SETTINGS_INPUT)", name
            )
        try:
            values[name] = custom_parameter(name, value)
        except InferenceError as error:
            raise OpenAiError(error.message, name) from None
    return values or None


def _switches(asked: TextRequest, signature: ModelSignature, tensors: OpenAiTensors) -> list[InputTensor]:
    """The inputs that are true or false: whether to stream, and which outputs are wanted."""
    values = {tensors.stream: asked.streams} if tensors.stream else {}
    if ALWAYS_TRUE in signature.inputs:
        values[ALWAYS_TRUE] = True
    outputs = [tensors.finish_reason, tensors.prompt_tokens, tensors.completion_tokens, tensors.tool_calls]
    if asked.logprobs is not None:
        outputs.append(tensors.logprobs)
    values |= {ASKS_PREFIX + output: True for output in outputs if output and ASKS_PREFIX + output in signature.inputs}
    return [
        _element(signature, name, "BOOL", b"\x01" if value else b"\x00")
        for name, value in values.items()
        if signature.inputs[name].datatype == "BOOL"
    ]


def _element(signature: ModelSignature, name: str, datatype: str, data: bytes, rows: int = 0) -> InputTensor:
    """A tensor of one element, or of so many rows of one."""
    dims = [1] * len(signature.inputs[name].dims)
    batch = [rows or 1] if signature.max_batch_size else []
    return InputTensor(name, datatype, [*batch, *dims], data)


def embedding_requests(asked: EmbeddingRequest, signature: ModelSignature, version: str) -> list[InferenceRequest]:
    """Inference requests for all texts, in their order, each with as many as the model takes at a time."""
    tensors = openai_tensors_in(signature)
    assert tensors is not None
    if not (tensors.embedding and tensors.embedding_text):
        raise OpenAiError(
            f"model '{asked.model}' has no embeddings: ask /v1/completions or /v1/chat/completions", "model"
        )
    rows = max(1, signature.max_batch_size)
    requests = []
    for begin in range(0, len(asked.texts), rows):
        texts = asked.texts[begin : begin + rows]
        request = InferenceRequest(signature.model_name, version)
        data = encode_elements(texts)
        request.inputs = [_element(signature, tensors.embedding_text, "BYTES", data, len(texts))]
        requests.append(request)
    return requests
