"""Responses of a model as OpenAI's documents: whole answers, pieces of streams, embeddings, and errors."""

from __future__ import annotations

import codecs
import time
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np

from pybackend.errors import ErrorCode, FullQueueError, InferenceError, UnknownModelError
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend_addons.openai.protocol.request import OpenAiError, TextRequest
from pybackend_addons.openai.tensors import COUNTS, NUMBERS, TEXTS, OpenAiTensors
from pybackend_wire.bytes_tensor import decode_elements

_encode = msgspec.json.Encoder().encode

DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream."""

_GOES_ON = frozenset({b"", b"None", b"null"})
"""The reason for the end of a text in the words of models, before there is one."""

MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Bound of the outputs of a whole answer, which are kept until the last one is complete."""


class Piece(NamedTuple):
    """The part of a text that a response adds. ``finish`` is empty while the text goes on."""

    text: str
    logprobs: list[Any] | None
    tool_calls: list[Any] | None
    finish: str
    nbytes: int  # of the tensors in which it came

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.logprobs or self.tool_calls or self.finish)


class Choice:
    """One of the texts of an answer, as it grows.

    Models may cut their pieces within a character, or say more than the client wants: the text here has whole
    characters only, and ends before the first of the client's stops.
    """

    def __init__(self, index: int, asked: TextRequest, tensors: OpenAiTensors) -> None:
        self.index = index
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish = ""
        self._asked = asked
        self._tensors = tensors
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = [stop.decode() for stop in asked.stops]
        self._held = ""  # may be the beginning of a stop
        self._has_calls = False

    @property
    def ended(self) -> bool:
        """True once the text is complete; the model need not go on."""
        return bool(self.finish)

    def take(self, response: InferenceResponse) -> Piece:
        """Take a response; raises InferenceError if its outputs cannot be read."""
        names = self._tensors
        nbytes = 0

        def texts(name: str) -> list[bytes]:
            nonlocal nbytes
            tensor = _output(response, name, TEXTS) if name else None
            if tensor is None:
                return []
            nbytes += len(tensor.data)
            return decode_elements(tensor.data)

        said = b"".join(texts(names.text))
        reason = next((each for each in texts(names.finish_reason) if each not in _GOES_ON), b"")
        if response.final and not reason:
            reason = b"stop"
        calls = _listed(texts(names.tool_calls))
        self._has_calls = self._has_calls or bool(calls)
        if (tokens := token_count(response, names.prompt_tokens)) is not None:
            self.prompt_tokens = tokens
        if (tokens := token_count(response, names.completion_tokens)) is not None:
            self.completion_tokens = (self.completion_tokens or 0) + tokens
        logprobs = None if self._asked.logprobs is None else _listed(texts(names.logprobs))
        text = self._decode(said, bool(reason))
        return self._piece(text, reason.decode("utf-8", "replace"), logprobs, calls, nbytes)

    def end(self) -> Piece:
        """The model has ended without a last response."""
        return self._piece(self._decode(b"", True), "stop", None, None, 0)

    def _piece(self, text: str, reason: str, logprobs: list[Any] | None, calls: list[Any] | None, nbytes: int) -> Piece:
        text = self._held + text
        self._held = ""
        cut = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=-1)
        if cut >= 0:
            text, reason = text[:cut], "stop"
        elif not reason and self._stops:
            kept = _safe_length(text, self._stops)
            text, self._held = text[:kept], text[kept:]
        if reason:
            self.finish = "tool_calls" if self._has_calls and reason == "stop" and cut < 0 else reason
        return Piece(text, logprobs, calls, self.finish, nbytes)


def _output(response: InferenceResponse, name: str, datatypes: Collection[str]) -> OutputTensor | None:
    """An output, if the model has sent it. Raises InferenceError: its datatype is not that of the configuration."""
    for tensor in response.outputs:
        if tensor.name == name:
            if tensor.datatype not in datatypes:
                raise InferenceError(
                    f"the model has answered with {tensor.datatype} in its output '{name}', whose configuration says otherwise"
                )
            return tensor
    return None


def token_count(response: InferenceResponse, name: str) -> int | None:
    """The number of tokens in an output; None if the model does not tell it."""
    tensor = _output(response, name, COUNTS)
    if tensor is None or not len(tensor.data):
        return None
    return int(np.frombuffer(tensor.data, tensor.datatype.lower()).sum())


def _safe_length(text: str, stops: Sequence[str]) -> int:
    """How much of a text cannot belong to a stop that the next piece completes."""
    longest = max(map(len, stops)) - 1
    for begin in range(max(0, len(text) - longest), len(text)):
        end = text[begin:]
        if any(stop.startswith(end) for stop in stops):
            return begin
    return len(text)


def _listed(texts: list[bytes]) -> list[Any] | None:
    """The JSON lists in the elements of an output, joined; None for none."""
    values: list[Any] = []
    for text in texts:
        if text in {b"", b"null"}:
            continue
        try:
            values += msgspec.json.decode(text, type=list)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise InferenceError("the model's output is no JSON list, as OpenAI's routes need it") from None
    return values or None


# Texts


class TextAnswer:
    """The documents of one answer: its whole, or the pieces of its stream."""

    def __init__(self, asked: TextRequest) -> None:
        self._asked = asked
        self._id = ("chatcmpl-" if asked.is_chat else "cmpl-") + uuid4().hex
        self._created = int(time.time())
        self._offsets = [0] * asked.choice_count
        self._begun: set[int] = set()
        self._calls = [0] * asked.choice_count

    def event(self, index: int, piece: Piece) -> bytes:
        """A piece of a text, as an event of the stream."""
        choice: dict[str, Any] = {"index": index, "logprobs": self._logprobs(index, piece.logprobs)}
        first = index not in self._begun
        self._begun.add(index)
        if self._asked.is_chat:
            delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
            if piece.text:
                delta["content"] = piece.text
            if piece.tool_calls:
                delta["tool_calls"] = [
                    {"index": self._calls[index] + place, **call} for place, call in enumerate(_calls(piece.tool_calls))
                ]
                self._calls[index] += len(piece.tool_calls)
            choice["delta"] = delta
        else:
            choice["text"] = self._echo(index) + piece.text if first else piece.text
        choice["finish_reason"] = piece.finish or None
        return self._event([choice])

    def usage_event(self, choices: Sequence[Choice]) -> bytes:
        """The event before the end of a stream whose client wants to know the numbers of tokens."""
        return self._event([], usage=self._usage(choices))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        document = {**self._head(".chunk" if self._asked.is_chat else ""), "choices": choices, **more}
        if self._asked.wants_usage:
            document.setdefault("usage", None)
        return b"data: %b\n\n" % _encode(document)

    def whole(self, choices: Sequence[Choice], pieces: Sequence[Sequence[Piece]]) -> bytes:
        """The answer without a stream."""
        documents = [self._choice(choice, said) for choice, said in zip(choices, pieces, strict=True)]
        return _encode({**self._head(), "choices": documents, "usage": self._usage(choices)})

    def _choice(self, choice: Choice, pieces: Sequence[Piece]) -> dict[str, Any]:
        index, text = choice.index, "".join(piece.text for piece in pieces)
        logprobs = [each for piece in pieces for each in piece.logprobs or ()]
        document = {
            "index": index,
            "logprobs": self._logprobs(index, logprobs or None),
            "finish_reason": choice.finish,
        }
        if not self._asked.is_chat:
            return {**document, "text": self._echo(index) + text}
        calls = _calls([each for piece in pieces for each in piece.tool_calls or ()])
        message: dict[str, Any] = {"role": "assistant", "content": (text or None) if calls else text, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {**document, "message": message}

    def _head(self, kind: str = "") -> dict[str, Any]:
        name = "chat.completion" if self._asked.is_chat else "text_completion"
        return {"id": self._id, "object": name + kind, "created": self._created, "model": self._asked.model}

    def _echo(self, index: int) -> str:
        return self._asked.prompts[index // self._asked.n].decode() if self._asked.echoes else ""

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int] | None:
        """Tokens of prompts count once, however many texts continue them; None if the model does not tell numbers."""
        prompts = [choice.prompt_tokens for choice in choices[:: self._asked.n]]
        completions = [choice.completion_tokens for choice in choices]
        if None in prompts or None in completions:
            return None
        read, written = sum(filter(None, prompts)), sum(filter(None, completions))
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _logprobs(self, index: int, tokens: list[Any] | None) -> dict[str, Any] | None:
        """The log probabilities: a model tells for each token an object, whose first member is the chosen one."""
        if tokens is None or self._asked.logprobs is None:
            return None
        read = [_alternatives(token) for token in tokens]
        top = self._asked.logprobs
        best = [sorted(each, key=lambda one: -one[1])[:top] for each in read]
        if self._asked.is_chat:
            content = [
                {**_likelihood(*each[0]), "top_logprobs": [_likelihood(*one) for one in likely]}
                for each, likely in zip(read, best, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets = []
        for each in read:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(each[0][0])
        return {
            "tokens": [each[0][0] for each in read],
            "token_logprobs": [each[0][1] for each in read],
            "top_logprobs": [dict(likely) for likely in best] if top else None,
            "text_offset": offsets,
        }


def _alternatives(token: Any) -> list[tuple[str, float]]:
    try:
        found = [(str(each["decoded_token"]), float(each["logprob"])) for each in token.values()]
        return [(text, max(number, -9999.0)) for text, number in found][:64] or [("", 0.0)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InferenceError(
            'the model\'s log probabilities must be a list of objects such as {"17": {"logprob": -0.5, "decoded_token": " a"}}'
        ) from None


def _likelihood(text: str, number: float) -> dict[str, Any]:
    return {"token": text, "logprob": number, "bytes": list(text.encode("utf-8", "replace"))}


def _calls(given: Sequence[Any]) -> list[dict[str, Any]]:
    """Tool calls in OpenAI's form: what a model leaves out is added, and arguments are JSON text."""
    calls = []
    for call in given:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments", {})
        if not isinstance(name, str):
            raise InferenceError(
                'the model\'s tool calls must be a list of objects such as {"name": "f", "arguments": {}}'
            )
        text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
        number = call.get("id")
        calls.append(
            {
                "id": number if isinstance(number, str) else f"call_{uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": name, "arguments": text},
            }
        )
    return calls


# Embeddings


def embedding_rows(response: InferenceResponse, name: str, count: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """The embeddings of so many texts; raises InferenceError if the output has another form."""
    tensor = _output(response, name, NUMBERS)
    if tensor is None:
        raise InferenceError(f"the model has answered without its output '{name}'")
    kind = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}[tensor.datatype]
    values = np.frombuffer(bytes(tensor.data), kind)
    if count == 0 or len(values) % count:
        raise InferenceError(f"output '{name}' has {len(values)} numbers for {count} texts")
    return list(values.astype("<f4").reshape(count, -1))


def embedding_documents(
    model: str, rows: Sequence[np.ndarray[Any, np.dtype[np.float32]]], tokens: int, *, is_base64: bool
) -> Iterator[bytes]:
    """The parts of an answer with embeddings: one part for each text, so that others are served in between."""
    yield b'{"object":"list","model":%b,"data":[' % _encode(model)
    for index, row in enumerate(rows):
        value: Any = b64encode(row.tobytes()).decode() if is_base64 else row.tolist()
        yield (b"," if index else b"") + _encode({"object": "embedding", "index": index, "embedding": value})
    yield b'],"usage":%b}' % _encode({"prompt_tokens": tokens, "total_tokens": tokens})


# Models and errors


def model_document(name: str, created: int) -> dict[str, Any]:
    """A model in the list."""
    return {"id": name, "object": "model", "created": created, "owned_by": "pybackend"}


_TYPES: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", None),
    405: ("invalid_request_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}

_STATUS = {
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.UNKNOWN: 400,
    ErrorCode.CANCELLED: 400,
    ErrorCode.UNAVAILABLE: 503,
}


def openai_error(message: str, status: int, param: str = "", code: str = "") -> bytes:
    """The body of an error."""
    kind, usual = _TYPES.get(status, ("server_error", None))
    text = message.encode("utf-8", "replace").decode()
    return _encode({"error": {"message": text, "type": kind, "param": param or None, "code": code or usual}})


def error_answer(error: InferenceError) -> tuple[int, bytes]:
    """The status and the body for an error."""
    if isinstance(error, UnknownModelError):
        return 404, openai_error(error.message, 404, "model", "model_not_found")
    status = 429 if isinstance(error, FullQueueError) else _STATUS.get(error.code, 500)
    if isinstance(error, OpenAiError):
        return status, openai_error(error.message, status, error.param, error.openai_code)
    return status, openai_error(error.message, status)
