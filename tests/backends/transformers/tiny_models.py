"""Hugging Face directories with random weights: a few kilobytes each, made without a network."""

from pathlib import Path
from typing import Any

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "<s>",
    "</s>",
    "hello",
    "world",
    "this",
    "is",
    "good",
    "bad",
    "food",
    "about",
    "not",
    "a",
    "b",
    "c",
    "d",
    ".",
)


def make_tokenizer(*, of_pairs: bool = True) -> Any:
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if of_pairs:
        words.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]"} if of_pairs else {"eos_token": "</s>", "bos_token": "<s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)


def make_bert(directory: Path, model_class: str, labels: tuple[str, ...] = (), spread: float = 0.02) -> None:
    """Save a tiny BERT with a head, e.g. ``BertForSequenceClassification``; larger spreads tell texts better apart."""
    import torch
    import transformers

    torch.manual_seed(0)
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: place for place, label in enumerate(labels)}}
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=spread,
        **(named if labels else {}),
    )
    getattr(transformers, model_class)(config).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


def make_gpt(directory: Path) -> None:
    """Save a tiny GPT-2 that generates words."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS),
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=4,
        eos_token_id=5,
        initializer_range=1.0,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)
    make_tokenizer(of_pairs=False).save_pretrained(directory)


def make_llama(directory: Path) -> None:
    """Save a tiny Llama, whose heads share keys and values."""
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=4,
        eos_token_id=5,
        initializer_range=1.0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    make_tokenizer(of_pairs=False).save_pretrained(directory)


def make_vit(directory: Path, labels: tuple[str, ...]) -> None:
    """Save a tiny vision transformer for images of 32 times 32 pixels."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
    )
    transformers.ViTForImageClassification(config).save_pretrained(directory)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(directory)
