"""Loads a Hugging Face directory: never from the network, never a pickle, and no code of the directory unless allowed."""

import os
from typing import Any, Dict, Optional

# Before the libraries are imported: they decide then.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # instances share the cores
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

import torch
import transformers

from pybackend_sdk.error import TritonModelException

DTYPES = {"auto": "auto", "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

TASKS = {
    "text-classification": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "zero-shot-classification": ("", "AutoModelForSequenceClassification"),
    "token-classification": ("ForTokenClassification", "AutoModelForTokenClassification"),
    "text-generation": ("ForCausalLM,LMHeadModel", "AutoModelForCausalLM"),
    "text2text-generation": ("ForConditionalGeneration", "AutoModelForSeq2SeqLM"),
    "image-classification": ("ForImageClassification", "AutoModelForImageClassification"),
    "feature-extraction": ("Model", "AutoModel"),
}
"""Each task: the ends of the architectures that it is chosen for, and the class that loads the model."""


class Checkpoint:
    """A directory with a model, and how to read it.

    Args:
        task: one of TASKS, empty to choose by the architecture in ``config.json``.
        trust_remote_code: whether Python files in the directory may run.

    Raises:
        TritonModelException: there is no description, or the architecture tells no task.
    """

    def __init__(self, directory: str, task: str = "", trust_remote_code: bool = False) -> None:
        self.directory = directory
        self.trust_remote_code = trust_remote_code
        self.config = self._read(transformers.AutoConfig, "a description of a model (config.json)")
        self.task = task or self._task_of_architecture()

    def model(self, dtype: str, device: str) -> Any:
        """The model, ready for inference.

        Args:
            dtype: one of DTYPES; ``auto`` for the one of the file.
        """
        loader = getattr(transformers, TASKS[self.task][1])
        model = self._read(loader, f"a model for {self.task}", dtype=DTYPES[dtype])
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(requires_grad=False)
        return model.to(device) if device else model

    def tokenizer(self) -> Any:
        """The tokenizer; it can pad."""
        tokenizer = self._read(transformers.AutoTokenizer, "a tokenizer")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
        return tokenizer

    def image_processor(self) -> Any:
        """The part that turns images into tensors."""
        return self._read(transformers.AutoImageProcessor, "an image processor (preprocessor_config.json)")

    def _read(self, loader: Any, what: str, **options: Any) -> Any:
        try:
            return loader.from_pretrained(
                self.directory, local_files_only=True, trust_remote_code=self.trust_remote_code, **options
            )
        except Exception as error:  # noqa: BLE001  the library raises many types for a bad directory
            raise TritonModelException(
                f"{self.directory} cannot be loaded as {what} by transformers {transformers.__version__}: "
                f"{_beginning_of(error)}"
            ) from None

    def _task_of_architecture(self) -> str:
        architectures = list(getattr(self.config, "architectures", None) or [])
        for architecture in architectures:
            for task, (ends, _) in TASKS.items():
                if any(end and architecture.endswith(end) for end in ends.split(",")):
                    return task
        named = ", ".join(architectures) or "no architecture"
        raise TritonModelException(
            f"{self.directory}: config.json names {named}, which tells no task. Say it with the parameter TASK: "
            f"{', '.join(TASKS)}."
        )


def find_directory(version_directory: str, model: str = "", cache: str = "") -> str:
    """The directory of a checkpoint.

    Args:
        version_directory: searched if there is no ``model``; the checkpoint lies in it or in its directory ``model``.
        model: a directory, relative to the version directory or absolute, or the id of a model in a local cache.
        cache: of the Hugging Face libraries; empty for their own default.

    Raises:
        TritonModelException: there is none.
    """
    if not model:
        for candidate in (version_directory, os.path.join(version_directory, "model")):
            if os.path.isfile(os.path.join(candidate, "config.json")):
                return candidate
        raise TritonModelException(
            f"{version_directory} has no config.json: put there what save_pretrained() writes, or name a model of a local "
            "cache with the parameter MODEL."
        )
    directory = os.path.join(version_directory, model)
    if os.path.isfile(os.path.join(directory, "config.json")):
        return directory
    return _cached(model, cache)


def _cached(model: str, cache: str) -> str:
    import huggingface_hub

    try:
        return str(huggingface_hub.snapshot_download(model, cache_dir=cache or None, local_files_only=True))
    except Exception:  # noqa: BLE001  names of exceptions differ between versions
        place = cache or huggingface_hub.constants.HF_HUB_CACHE
        raise TritonModelException(
            f"MODEL '{model}' is neither a directory with config.json nor in the local cache {place}. Models are never "
            f"downloaded while serving: fetch it before with `hf download {model}`."
        ) from None


def _beginning_of(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])[:400] if lines else type(error).__name__
    return text if text.endswith((".", "!")) else text + "."


def labels_of(config: Any) -> "Dict[int, str]":
    """The names of classes by their numbers."""
    return {int(number): str(label) for number, label in config.id2label.items()}


def length_limit(tokenizer: Any, config: Any, configured: Optional[int]) -> int:
    """The most tokens of a text: the parameter, else the smaller of the tokenizer's and the model's own."""
    known = [limit for limit in (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)) if limit]
    natural = min([limit for limit in known if limit < 10**9], default=512)
    return natural if configured is None else min(configured, natural)
