"""Texts that are continued together, one token of each at a time; texts join and leave between two steps.

The texts are padded on the left. Each text gets the tokens that it would get alone, within the precision of the
numbers: a sum over several texts may round differently.
"""

import copy
import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
import transformers

from pybackend_backends.transformers.sampling import Sampling


class Piece(NamedTuple):
    """A new part of an answer, with its number of tokens.

    The last one has the reason of the end, ``stop`` or ``length``.
    """

    text: str
    tokens: int
    finish_reason: str


class AnswerReceiver:
    """Receives the pieces of one answer; the base of those that send them.

    Only those that stream want pieces before the last.
    """

    streams = False

    def offer(self, piece: Piece) -> bool:
        """Take a piece that is not the last one; False if the next one should bring it along."""
        raise NotImplementedError

    def end(self, piece: Piece) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """There is no answer."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Nobody waits for the rest of the answer."""
        raise NotImplementedError

    def is_cancelled(self) -> bool:
        raise NotImplementedError


class TextPieces(transformers.TextStreamer):  # type: ignore[misc]  # mypy does not read the library
    """Turns tokens into text, and offers it to a receiver as soon as whole words are there.

    The text that a slow receiver does not take is joined with the text that follows. It is bounded by the answer.
    """

    def __init__(self, tokenizer: Any, receiver: AnswerReceiver) -> None:
        super().__init__(tokenizer, skip_prompt=False, skip_special_tokens=True)
        self._receiver = receiver
        self._text = ""
        self._tokens = 0

    def put(self, value: Any) -> None:
        """Take tokens: (1) or (1, tokens)."""
        self._tokens += int(value.numel())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Take text that no later token changes."""
        self._text += text
        if self._text and not stream_end and self._receiver.offer(Piece(self._text, self._tokens, "")):
            self._text, self._tokens = "", 0

    def finish(self, reason: str) -> None:
        super().end()
        self._receiver.end(Piece(self._text, self._tokens, reason))


class PromptlessPieces(TextPieces):
    """The same for the library's ``generate``, which begins with the prompt, in one call, and ends by itself."""

    def __init__(self, tokenizer: Any, receiver: AnswerReceiver) -> None:
        super().__init__(tokenizer, receiver)
        self._sees: Callable[[Any], None] = self._skip

    def put(self, value: Any) -> None:
        self._sees(value)

    def _skip(self, _: Any) -> None:
        self._sees = super().put

    def end(self) -> None:
        """Nothing: the reason of the end is not known yet."""


_READ = frozenset(
    {
        "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_id", "pad_token_id",
        "bos_token_id", "max_length", "max_new_tokens", "min_new_tokens", "use_cache", "transformers_version",
        "_from_model_config", "output_attentions", "output_hidden_states", "return_dict_in_generate",
    }
)  # fmt: skip
"""Fields of a generation_config.json that this module acts on, or that change no token."""

_NO_EFFECT = {"num_beams": 1, "length_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "typical_p": 1.0}
"""Values of other fields that change no token."""

_DEFAULT_TOP_K = 50
"""The library uses it if text is sampled and nobody says."""


class Rules(NamedTuple):
    """How the tokens of one text are chosen: what ends it, what changes scores, and whether a token is drawn."""

    ends: "frozenset[int]"
    processors: List[Any]
    samples: bool


def rules_of(config: Any, sampling: Sampling, prompt_tokens: int, device: str) -> Optional[Rules]:
    """The rules for a text; None if only the library's own ``generate`` knows how."""
    config = copy.deepcopy(config)
    unknown = config.update(**sampling.options)
    changed = {name: value for name, value in config.to_diff_dict().items() if value is not None}
    others = {name for name, value in changed.items() if name not in _READ and _NO_EFFECT.get(name, ()) != value}
    if unknown or others:
        return None
    ends = _ends(config.eos_token_id)
    return Rules(ends, _processors(config, sampling, prompt_tokens, ends, device or "cpu"), bool(config.do_sample))


def _ends(given: Any) -> "frozenset[int]":
    if given is None:
        return frozenset()
    return frozenset(given if isinstance(given, (list, tuple)) else [given])


def _processors(config: Any, sampling: Sampling, prompt_tokens: int, ends: "frozenset[int]", device: str) -> List[Any]:
    """In the library's order."""
    made: List[Any] = []
    if config.repetition_penalty is not None and config.repetition_penalty != 1.0:
        made.append(transformers.RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    least = sampling.min_tokens or config.min_new_tokens
    if least and ends:
        made.append(transformers.MinNewTokensLengthLogitsProcessor(prompt_tokens, least, sorted(ends), device=device))
    if not config.do_sample:
        return made
    if config.temperature is not None and config.temperature != 1.0:
        made.append(transformers.TemperatureLogitsWarper(float(config.temperature)))
    top_k = _DEFAULT_TOP_K if config.top_k is None else config.top_k
    if top_k != 0:
        made.append(transformers.TopKLogitsWarper(top_k))
    if config.top_p is not None and config.top_p < 1.0:
        made.append(transformers.TopPLogitsWarper(config.top_p))
    if config.min_p is not None:
        made.append(transformers.MinPLogitsWarper(config.min_p))
    return made


def has_stop(tokenizer: Any, answer: List[int], stops: List[str]) -> bool:
    """Whether an answer has one of the texts that end it."""
    if not stops:
        return False
    text = tokenizer.decode(answer, skip_special_tokens=True)
    return any(stop in text for stop in stops)


class Chooser:
    """Chooses the tokens of one text, by arbitrary random numbers if it has no seed."""

    def __init__(self, rules: Rules, seed: Any, device: str) -> None:
        self._rules = rules
        self._random: Any = None
        if rules.samples:
            self._random = torch.Generator(device or "cpu")
            if seed is None:
                self._random.seed()
            else:
                self._random.manual_seed(seed)

    @property
    def takes_likeliest(self) -> bool:
        """Whether the likeliest token is taken, whatever the text is."""
        return not self._rules.samples and not self._rules.processors

    def choose(self, tokens: List[int], scores: Any) -> int:
        """The next token, by the score of each token: (1, vocabulary)."""
        ids = torch.tensor([tokens], device=scores.device)
        for processor in self._rules.processors:
            scores = processor(ids, scores)
        if not self._rules.samples:
            return int(scores.argmax(dim=-1))
        return int(torch.multinomial(scores.softmax(dim=-1), 1, generator=self._random))


class TextRow:
    """One text; ``tokens`` are the prompt and the answer so far."""

    def __init__(
        self, tokens: List[int], sampling: Sampling, rules: Rules, receiver: AnswerReceiver, tokenizer: Any, device: str
    ) -> None:
        self.tokens = tokens
        self.receiver = receiver
        self.chooser = Chooser(rules, sampling.seed, device)
        self._prompt_tokens = len(tokens)
        self._ends = rules.ends
        self._most_tokens = sampling.max_tokens
        self._tokenizer = tokenizer
        self._pieces = TextPieces(tokenizer, receiver) if receiver.streams else None
        self._stops = sampling.stop

    def take(self, token: int) -> bool:
        """Add a token; returns whether the text goes on. Its receiver gets the text that is ready."""
        self.tokens.append(token)
        if self._pieces is not None:
            self._pieces.put(torch.tensor([token]))
        reason = self._reason(token)
        if not reason:
            return True
        if self._pieces is not None:
            self._pieces.finish(reason)
        else:
            answer = self.tokens[self._prompt_tokens :]
            text = self._tokenizer.decode(answer, skip_special_tokens=True)
            self.receiver.end(Piece(text, len(answer), reason))
        return False

    def _reason(self, token: int) -> str:
        if token in self._ends or has_stop(self._tokenizer, self.tokens[self._prompt_tokens :], self._stops):
            return "stop"
        return "length" if len(self.tokens) - self._prompt_tokens >= self._most_tokens else ""


class TextBatch:
    """The texts of a model that are continued together."""

    def __init__(self, model: Any) -> None:
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        # The scores of a prompt's other tokens are not computed where the model can leave them out.
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        self.rows: List[TextRow] = []
        self._cache: Any = None
        self._mask: Any = None

    def join(self, row: TextRow) -> None:
        """Read the prompt of a text, choose its first token, and continue it with the others from the next step on."""
        ids = torch.tensor([row.tokens], device=self._model.device)
        cache = transformers.DynamicCache(config=self._model.config)
        mask = torch.ones_like(ids)
        scores = self._scores(ids, mask, cache)
        if not row.take(self._choose([row], scores)[0]):
            return
        if self.rows:
            length = max(self._mask.shape[1], mask.shape[1])
            _pad(self._cache, length - self._mask.shape[1])
            _pad(cache, length - mask.shape[1])
            _append(self._cache, cache)
            self._mask = torch.cat([_padded(self._mask, length), _padded(mask, length)])
        else:
            self._cache, self._mask = cache, mask
        self.rows.append(row)

    def step(self) -> None:
        """Add a token to every text, and let those leave that have ended or that nobody waits for."""
        cancelled = [row for row in self.rows if row.receiver.is_cancelled()]
        self.leave(cancelled)
        for row in cancelled:
            row.receiver.cancel()
        if not self.rows:
            return
        ids = torch.tensor([row.tokens[-1:] for row in self.rows], device=self._model.device)
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], dim=1)
        scores = self._scores(ids, self._mask, self._cache)
        tokens = self._choose(self.rows, scores)
        self.leave([row for row, token in zip(self.rows, tokens) if not _taken(row, token)])

    def leave(self, gone: List[TextRow]) -> None:
        if not gone:
            return
        kept = [place for place, row in enumerate(self.rows) if row not in gone]
        self.rows = [self.rows[place] for place in kept]
        if not kept:
            self._cache = self._mask = None
            return
        places = torch.tensor(kept, device=self._mask.device)
        self._mask = self._mask[places]
        padding = int(self._mask.shape[1] - self._mask.sum(dim=1).max())
        self._mask = self._mask[:, padding:]
        for layer in self._cache.layers:
            layer.keys = layer.keys[places][:, :, padding:]
            layer.values = layer.values[places][:, :, padding:]

    def clear(self) -> List[TextRow]:
        rows, self.rows = self.rows, []
        self._cache = self._mask = None
        return rows

    def _scores(self, ids: Any, mask: Any, cache: Any) -> Any:
        """Of each token of the vocabulary as the next one, (texts, vocabulary); the cache takes the new tokens."""
        options: Dict[str, Any] = dict(self._options)
        if self._takes_positions:
            options["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self._model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **options)
        return output.logits[:, -1].float()

    @staticmethod
    def _choose(rows: List[TextRow], scores: Any) -> List[int]:
        likeliest: List[int] = scores.argmax(dim=-1).tolist()
        return [
            token if row.chooser.takes_likeliest else row.chooser.choose(row.tokens, scores[place : place + 1])
            for place, (row, token) in enumerate(zip(rows, likeliest))
        ]


def _taken(row: TextRow, token: int) -> bool:
    """Whether a text goes on with a token. An error ends this text only."""
    try:
        return row.take(token)
    except Exception as error:  # noqa: BLE001  tokenizers raise anything
        row.receiver.fail(error)
        return False


def can_batch(model: Any) -> bool:
    """Whether texts of a model can be continued together: it keeps the keys and values of all tokens, and nothing else."""
    if getattr(model.config, "is_encoder_decoder", False):
        return False
    parameters = inspect.signature(model.forward).parameters
    if not {"input_ids", "attention_mask", "past_key_values", "use_cache"} <= parameters.keys():
        return False
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    cache = transformers.DynamicCache(config=model.config)
    try:
        model(input_ids=token, attention_mask=torch.ones_like(token), past_key_values=cache, use_cache=True)
        layers = cache.layers
        # Layers of other classes forget old tokens, or keep a state: padding would spoil them.
        return bool(layers) and all(
            type(layer) is transformers.cache_utils.DynamicLayer and layer.keys.shape[2] == 1 for layer in layers
        )
    except Exception:  # noqa: BLE001  the model has another kind of cache
        return False


def _padded(mask: Any, length: int) -> Any:
    return torch.nn.functional.pad(mask, (length - mask.shape[1], 0))


def _pad(cache: Any, count: int) -> None:
    if count:
        for layer in cache.layers:
            layer.keys = torch.nn.functional.pad(layer.keys, (0, 0, count, 0))
            layer.values = torch.nn.functional.pad(layer.values, (0, 0, count, 0))


def _append(cache: Any, other: Any) -> None:
    for layer, more in zip(cache.layers, other.layers):
        layer.keys = torch.cat([layer.keys, more.keys])
        layer.values = torch.cat([layer.values, more.values])
