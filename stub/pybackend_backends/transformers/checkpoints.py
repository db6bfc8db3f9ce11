"""Loads a Hugging Face directory: never from the network, never a pickle, and no code of the directory unless allowed."""

import os
from typing import Any, Dict, Mapping, NamedTuple, Optional

from pybackend_backends.pytorch.archive import beginning_of
from pybackend_sdk.backend import boolean, choice, read_parameters, text, threads_per_instance, whole_number
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import get_model_dir

# Before the libraries are imported: they decide then.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # instances share the cores
os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

import torch
import transformers

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

    Without a task, the architecture in ``config.json`` chooses one of TASKS.
    """

    def __init__(self, directory: str, task: str = "", trust_remote_code: bool = False) -> None:
        self.directory = directory
        self.trust_remote_code = trust_remote_code
        self.config = self._read(transformers.AutoConfig, "a description of a model (config.json)")
        self.task = task or self._task_of_architecture()

    def model(self, dtype: str, device: str) -> Any:
        """The model, ready for inference, in one of DTYPES."""
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
        return self._read(transformers.AutoImageProcessor, "an image processor (preprocessor_config.json)")

    def _read(self, loader: Any, what: str, **options: Any) -> Any:
        try:
            return loader.from_pretrained(
                self.directory, local_files_only=True, trust_remote_code=self.trust_remote_code, **options
            )
        except Exception as error:  # noqa: BLE001  the library raises many types for a bad directory
            raise TritonModelException(
                f"{self.directory} cannot be loaded as {what} by transformers {transformers.__version__}: "
                f"{beginning_of(error, 400)}"
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

    Without a model, it lies in the version directory or in its directory ``model``. A model is a directory, relative to
    the version directory or absolute, or the id of a model in a local cache; without one, that is the default of the
    Hugging Face libraries.
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


def labels_of(config: Any) -> "Dict[int, str]":
    """The names of classes by their numbers."""
    return {int(number): str(label) for number, label in config.id2label.items()}


def length_limit(tokenizer: Any, config: Any, configured: Optional[int]) -> int:
    """The most tokens of a text: the parameter, else the smaller of the tokenizer's and the model's own."""
    known = [limit for limit in (tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)) if limit]
    natural = min([limit for limit in known if limit < 10**9], default=512)
    return natural if configured is None else min(configured, natural)


POOLINGS = ("mean", "cls", "last", "max")

PARAMETERS = {
    "TASK": choice(*TASKS),
    "MODEL": text(),
    "CACHE_DIRECTORY": text(),
    "TRUST_REMOTE_CODE": boolean(),
    "DTYPE": choice(*DTYPES),
    "MAX_LENGTH": whole_number(at_least=1),
    "POOLING": choice(*POOLINGS),
    "NORMALIZE": boolean(),
    "AGGREGATION": choice("none", "simple", "first", "average", "max"),
    "HYPOTHESIS_TEMPLATE": text(),
    "MAX_TOKENS": whole_number(at_least=1),
    "MAX_TEXTS": whole_number(at_least=1),
    "CHAT_TEMPLATE": text(),
    "INTRA_OP_THREAD_COUNT": whole_number(at_least=1),
}

_DEFAULT_MAX_TOKENS = 16
"""As in vLLM, whose parameters clients send."""


class TaskSettings(NamedTuple):
    """The parameters of a model that its task reads.

    Without ``max_length``, the model's own limit of tokens holds. ``max_tokens`` is for an answer whose request does
    not say, and ``max_texts`` is how many texts an instance continues at a time. Without a file ``chat_template``, the
    tokenizer's own counts.
    """

    dtype: str = "auto"
    max_length: Optional[int] = None
    pooling: str = "mean"
    normalize: bool = False
    aggregation: str = "simple"
    hypothesis: str = "This example is {}."
    max_tokens: int = _DEFAULT_MAX_TOKENS
    max_texts: int = 16
    chat_template: Optional[str] = None


def read_settings(config: Mapping[str, Any]) -> TaskSettings:
    """Read the parameters of a model."""
    values = read_parameters(config, PARAMETERS)
    names = {"hypothesis_template": "hypothesis"}
    lower = {names.get(name.lower(), name.lower()): value for name, value in values.items()}
    settings = TaskSettings(**{name: value for name, value in lower.items() if name in TaskSettings._fields})
    if "{}" not in settings.hypothesis:
        raise TritonModelException(
            f"model '{config['name']}': parameters HYPOTHESIS_TEMPLATE must have {{}} where the label goes, it is "
            f"'{settings.hypothesis}'"
        )
    return settings


def open_checkpoint(config: Mapping[str, Any]) -> Checkpoint:
    """Find the model of a configuration, and its task."""
    values = read_parameters(config, PARAMETERS)
    directory = find_directory(get_model_dir(), values.get("MODEL", ""), values.get("CACHE_DIRECTORY", ""))
    return Checkpoint(directory, values.get("TASK", ""), values.get("TRUST_REMOTE_CODE", False))


def use_threads(config: Mapping[str, Any]) -> None:
    """Set the number of threads of this process, which serves one instance."""
    values = read_parameters(config, PARAMETERS)
    torch.set_num_threads(values.get("INTRA_OP_THREAD_COUNT") or threads_per_instance(config))
