"""Requests of OpenAI's routes: checked, and turned into inference requests for the tensors that a model has for them.

Messages, tools and settings of sampling stay the JSON text that they are: the model's process reads them. So nothing
here knows a template, a tokenizer, or what a model can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from pybackend.errors import ErrorCode, InferenceError
from pybackend.inference.request import InferenceRequest, ParameterValue
from pybackend.inference.tensor import InputTensor
from pybackend.modelconfig.signature import ModelSignature
from pybackend.protocol.json.parameters import custom_parameter
from pybackend.protocol.json.slices import weights
from pybackend.protocol.json.tensor import encode_values
from pybackend.protocol.steps import Steps
from pybackend_addons.openai.tensors import ALWAYS_TRUE, ASKS_PREFIX, CHAT_PARTS, OpenAiTensors, openai_tensors_in
from pybackend_wire.bytes_tensor import encode_elements

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Bound of a request's body: images in messages are the largest part of honest ones."""

MOST_CHOICES: Final = 128
"""Bound of the texts that one request asks for: its prompts times ``n``."""

MOST_PROMPT_BYTES: Final = 4 * MAX_BODY_BYTES
"""Bound of the prompts of one request, as often as the model gets them."""

MOST_TEXTS: Final = 2048
"""Bound of the texts that one request embeds."""

MOST_TOKENS: Final = 300_000
"""Bound of the numbers of tokens that one request embeds."""

_MOST_PLAIN_BYTES: Final = 3 * 1024 * 1024
"""Bound of a body without its texts, which take longer to parse: it has room for the most numbers of tokens."""

_MOST_NAMES: Final = 64 * 1024
_MOST_STRINGS: Final = 256 * 1024
"""Bounds of the members of all objects of a body, and of its texts, names included."""

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


def check_weight(body: bytes) -> Steps[None]:
    """Refuse a body with much beside its texts, before it is parsed in one go."""
    for weight in weights(body):
        if weight.plain_bytes > _MOST_PLAIN_BYTES or weight.members > _MOST_NAMES or weight.texts > _MOST_STRINGS:
            raise OpenAiError(
                f"the body has too much beside its texts: at most {_MOST_STRINGS} texts, {_MOST_NAMES} members of objects, and "
                f"{_MOST_PLAIN_BYTES} other bytes can be"
            )
        yield


class RequestMembers:
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

    def check(self, kinds: Mapping[str, tuple[Any, str]]) -> None:
        """Refuse members of another kind than these; they stay. Null is as good as missing."""
        for name, (kind, expected) in kinds.items():
            text = self._raw.get(name)
            if text is not None:
                value = self.take(name, kind, expected)
                self._raw[name] = Raw(b"%d" % value) if type(value) is int else text  # it may have been 1.0

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


_PENALTY = (Annotated[float, Meta(ge=-2, le=2)], "a number from -2 to 2")
_COUNT = (Annotated[int, Meta(ge=1)], "a whole number of at least 1")

_SETTINGS: Mapping[str, tuple[Any, str]] = {
    "temperature": (Annotated[float, Meta(ge=0)], "a number of at least 0"),
    "top_p": (Annotated[float, Meta(ge=0, le=1)], "a number from 0 to 1"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "seed": (int, "a whole number"),
    "logit_bias": (
        dict[str, Annotated[float, Meta(ge=-100, le=100)]],
        "an object with a number from -100 to 100 for each token",
    ),
    "response_format": (dict[str, Raw], 'an object such as {"type": "text"}'),
    "tools": (list[dict[str, Raw]], 'a list of objects such as {"type": "function", "function": {"name": "f"}}'),
    "tool_choice": (str | dict[str, Raw], '"none", "auto", "required", or an object'),
    "reasoning_effort": (str, 'a text such as "low"'),
}
"""The settings of OpenAI's API that models get. Others are the model's own, and checked by it."""


class TextRequest(Struct):
    """A request for texts.

    ``prompts`` has a text for each prompt, or the JSON objects of chats, and ``parts`` the types of parts in messages
    beside texts. Without ``logprobs`` the client wants none; else it is the number of likely tokens beside each.
    """

    model: str
    is_chat: bool
    prompts: list[bytes]
    parts: frozenset[str]
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


def parse_text_request(body: bytes, *, is_chat: bool) -> Steps[TextRequest]:
    """Read a request for texts; raises :class:`OpenAiError`."""
    yield from check_weight(body)
    members = RequestMembers(body)
    yield
    model = members.need("model", str, "the name of a model")
    members.drop(_WITHOUT_EFFECT)
    for name, advice in _UNSERVED.items():
        if members.has(name):
            raise OpenAiError(f"'{name}' is not supported: {advice}", name)
    n = members.take("n", int, "a whole number")
    n = 1 if n is None else n
    members.check(_SETTINGS)
    stops = _stops(members)
    streams = members.take("stream", bool, "true or false") or False
    options = members.take("stream_options", StreamOptions, 'an object such as {"include_usage": true}')
    if options is not None and not streams:
        raise OpenAiError("'stream_options' needs \"stream\": true", "stream_options")
    most_tokens = members.take_raw("max_completion_tokens")
    yield
    parts: frozenset[str] = frozenset()
    if is_chat:
        logprobs, echoes, (chat, parts) = _chat_logprobs(members), False, _chat(members)
        prompts = [chat]
    else:
        logprobs = members.take("logprobs", int, "a whole number")
        echoes = members.take("echo", bool, "true or false") or False
        prompts = [text.encode() for text in _texts(members, "prompt", MOST_CHOICES)]
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
    return TextRequest(model, is_chat, prompts, parts, n, streams, wants_usage, echoes, encoded, logprobs, settings)


def _stops(members: RequestMembers) -> tuple[str, ...]:
    stop: str | list[str] | None = members.take("stop", _Texts, "a text or a list of texts")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS or not all(stops):
        raise OpenAiError(f"'stop' must be a text or up to {_MOST_STOPS} texts that are not empty", "stop")
    if any(len(each) > _MOST_STOP_CHARACTERS for each in stops):
        raise OpenAiError(f"a text of 'stop' can have up to {_MOST_STOP_CHARACTERS} characters", "stop")
    return stops


_NULL = Raw(b"null")


class _Message(Struct):
    """A message, as far as the server reads it."""

    content: Raw = _NULL


class _Part(Struct):
    """A part of a message's content, likewise."""

    type: str
    text: Raw = _NULL


def _chat(members: RequestMembers) -> tuple[bytes, frozenset[str]]:
    """The chat as one JSON object, which the model's process reads, and the types of its parts beside texts."""
    messages = members.take_raw("messages")
    kinds = _kinds_of_parts(messages or b"[]")
    parts = [b'"messages":%b' % (messages or b"[]")]
    choice = members.take_raw("tool_choice")
    tools = members.take_raw("tools")
    if tools is not None and choice != b'"none"':
        parts.append(b'"tools":' + tools)
        if choice is not None:
            parts.append(b'"tool_choice":' + choice)
    template = members.take_raw("chat_template_kwargs")
    if template is not None:
        parts.append(b'"chat_template_kwargs":' + template)
    return b"{%b}" % b",".join(parts), kinds


def _kinds_of_parts(messages: bytes) -> frozenset[str]:
    """The types of parts beside texts; raises OpenAiError for what is no list of messages."""
    kinds = set()
    try:
        given = msgspec.json.decode(messages, type=Annotated[list[_Message], Meta(min_length=1)])
        for message in given:
            first = _first(message.content)
            if first == b"[":
                for part in msgspec.json.decode(message.content, type=list[_Part]):
                    kinds.add(part.type)
                    if part.type == "text" and _first(part.text) != b'"':
                        raise OpenAiError(
                            "a part of type 'text' in 'messages' must have its text: \"text\": \"Hello\"", "messages"
                        )
            elif first not in {b'"', b"n"}:
                raise OpenAiError("the content of a message must be a text, or a list of parts", "messages")
    except _UNREADABLE:
        raise OpenAiError(
            '\'messages\' must be a list of messages, such as [{"role": "user", "content": "Hello"}]', "messages"
        ) from None
    return frozenset(kinds - {"text"})


def _first(text: Raw) -> bytes:
    return bytes(memoryview(text)[:1])


def _chat_logprobs(members: RequestMembers) -> int | None:
    wanted = members.take("logprobs", bool, "true or false")
    top = members.take("top_logprobs", int, "a whole number")
    if top and not wanted:
        raise OpenAiError("'top_logprobs' needs \"logprobs\": true", "top_logprobs")
    return (top or 0) if wanted else None


def _texts(members: RequestMembers, name: str, most: int) -> list[str]:
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
    """A request for the embeddings of texts, or of the numbers of their tokens."""

    model: str
    texts: list[bytes]
    tokens: list[list[int]]
    is_base64: bool
    dimensions: int | None


_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def parse_embedding_request(body: bytes) -> Steps[EmbeddingRequest]:
    """Read a request for embeddings; raises :class:`OpenAiError`."""
    yield from check_weight(body)
    members = RequestMembers(body)
    yield
    model = members.need("model", str, "the name of a model")
    members.drop(_WITHOUT_EFFECT)
    texts, tokens = _texts_or_tokens(members)
    if not all(texts) or not all(tokens):
        raise OpenAiError("'input' has an empty text", "input")
    yield
    dimensions = members.take("dimensions", *_COUNT)
    form = members.take("encoding_format", str, '"float" or "base64"')
    if form not in {None, "float", "base64"}:
        raise OpenAiError('\'encoding_format\' must be "float" or "base64"', "encoding_format")
    rest = members.rest()
    if rest:
        name = next(iter(rest))
        raise OpenAiError(f"'{name}' is not supported: the model alone decides about its embeddings", name)
    return EmbeddingRequest(model, [text.encode() for text in texts], tokens, form == "base64", dimensions)


def _texts_or_tokens(members: RequestMembers) -> tuple[list[str], list[list[int]]]:
    """The texts to embed, or the numbers of their tokens."""
    raw = members.take_raw("input") or b"null"
    given: Any = None
    for kind in (_Texts, list[_Token], list[list[_Token]]):
        try:
            given = msgspec.json.decode(raw, type=kind)
            break
        except _UNREADABLE:
            continue
    listed: Any = [given] if isinstance(given, str) else given
    if not listed:
        raise OpenAiError("'input' must be a text, a list of texts, or numbers of tokens", "input")
    if isinstance(listed[0], int):
        listed = [listed]
    if len(listed) > MOST_TEXTS:
        raise OpenAiError(f"'input' has {len(listed)} texts, from 1 to {MOST_TEXTS} can be", "input")
    if isinstance(listed[0], str):
        return listed, []
    count = sum(map(len, listed))
    if count > MOST_TOKENS:
        raise OpenAiError(f"'input' has {count} numbers of tokens, {MOST_TOKENS} are the most", "input")
    return [], listed


# Inference requests


def text_requests(asked: TextRequest, signature: ModelSignature, version: str) -> Steps[list[InferenceRequest]]:
    """An inference request for each requested text, prompt by prompt; raises :class:`OpenAiError`."""
    tensors = openai_tensors_in(signature)
    assert tensors is not None
    name = _prompt_input(asked, tensors)
    if asked.logprobs is not None and not tensors.logprobs:
        raise OpenAiError(f"model '{asked.model}' tells no log probabilities", "logprobs")
    foreign = asked.parts - tensors.chat_parts
    if foreign:
        raise OpenAiError(
            f"model '{asked.model}' takes no parts of type '{min(foreign)[:100]}' in messages: a model that takes more than texts "
            f"names them by its parameter {CHAT_PARTS}",
            "messages",
        )
    requests = []
    for prompt in asked.prompts:
        for place in range(asked.n):
            settings = dict(asked.settings)
            if place and "seed" in settings:  # the same seed would give the same text
                settings["seed"] = b"%d" % (int(settings["seed"]) + place)
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
            yield
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


def embedding_requests(
    asked: EmbeddingRequest, signature: ModelSignature, version: str
) -> Steps[list[InferenceRequest]]:
    """Inference requests for all texts, in their order, each with as many as the model takes at a time."""
    tensors = openai_tensors_in(signature)
    assert tensors is not None
    if not tensors.embeds:
        raise OpenAiError(
            f"model '{asked.model}' has no embeddings: ask /v1/completions or /v1/chat/completions", "model"
        )
    name = tensors.embedding_tokens if asked.tokens else tensors.embedding_text
    if asked.tokens and (not name or any(not each.optional for each in signature.inputs.values() if each.name != name)):
        raise OpenAiError(
            f"model '{asked.model}' takes texts, and no numbers of tokens: send texts (in LangChain by "
            "check_embedding_ctx_length=False)",
            "input",
        )
    if not name:
        raise OpenAiError(f"model '{asked.model}' takes numbers of tokens, and no texts", "input")
    parameters: dict[str, ParameterValue] | None = None
    if asked.dimensions is not None:
        size = (signature.outputs[tensors.embedding].dims or (1,))[-1]
        if size == -1:
            parameters = {"dimensions": asked.dimensions}
        elif size != asked.dimensions:
            raise wrong_dimensions_error(asked.model, size)
    requests = []
    for tensor in _embedding_inputs(asked, signature, name):
        requests.append(InferenceRequest(signature.model_name, version, inputs=[tensor], parameters=parameters))
        yield
    return requests


def wrong_dimensions_error(model: str, size: int) -> OpenAiError:
    """The error for a client that wants embeddings of another size."""
    return OpenAiError(f"model '{model}' has embeddings of {size} numbers: leave 'dimensions' out", "dimensions")


def _embedding_inputs(asked: EmbeddingRequest, signature: ModelSignature, name: str) -> Iterator[InputTensor]:
    """Texts come together, up to the size of a batch; texts of numbers have different lengths, and come alone."""
    is_batch = bool(signature.max_batch_size)
    rows = max(1, signature.max_batch_size)
    for begin in range(0, len(asked.texts), rows):
        texts = asked.texts[begin : begin + rows]
        yield _element(signature, name, "BYTES", encode_elements(texts), len(texts))
    datatype = signature.inputs[name].datatype
    for tokens in asked.tokens:
        shape = [1, len(tokens)] if is_batch else [len(tokens)]
        yield InputTensor(name, datatype, shape, encode_values(datatype, tokens))
