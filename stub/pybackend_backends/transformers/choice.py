"""Chooses the next token of a text, as the library does for the same settings."""

import copy
from typing import Any, List, NamedTuple, Optional

import torch
import transformers

from pybackend_backends.transformers.sampling import Sampling

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
    """How the tokens of one text are chosen.

    Attributes:
        ends: tokens that end the text.
        processors: of the library: they change the scores of tokens.
        samples: whether a token is drawn, rather than the likeliest one taken.
    """

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
    """Chooses the tokens of one text.

    Args:
        seed: of the random numbers, None for arbitrary ones.
    """

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
        """The next token.

        Args:
            scores: of each token, (1, vocabulary).
        """
        ids = torch.tensor([tokens], device=scores.device)
        for processor in self._rules.processors:
            scores = processor(ids, scores)
        if not self._rules.samples:
            return int(scores.argmax(dim=-1))
        return int(torch.multinomial(scores.softmax(dim=-1), 1, generator=self._random))
