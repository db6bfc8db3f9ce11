"""Writes the model: a tiny GPT-2 with random weights and a tokenizer of a few words, in a directory of Hugging Face.

It has learned nothing, so its answers are words in no order. A real model is served by putting its directory there
instead.
"""

from pathlib import Path

import tokenizers
import torch
import transformers

WORDS = [
    "the",
    "a",
    "server",
    "model",
    "answers",
    "asks",
    "waits",
    "quickly",
    "slowly",
    "with",
    "for",
    "and",
    "then",
    "one",
    "two",
    "three",
    "words",
    "numbers",
    "texts",
    ".",
]
SPECIAL = {"unk_token": "<unknown>", "eos_token": "<end>"}


def make_tokenizer():
    vocabulary = {word: place for place, word in enumerate([*SPECIAL.values(), *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, SPECIAL["unk_token"]))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=128, **SPECIAL)


def main():
    directory = Path(__file__).resolve().parent / "model_repository" / "babble" / "1"
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(SPECIAL) + len(WORDS),
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=1.0,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


if __name__ == "__main__":
    main()
