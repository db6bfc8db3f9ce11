"""Parameters of a model, and the checkpoint that they name."""

from typing import Any, Mapping, NamedTuple, Optional

import torch

from pybackend_backends.transformers.checkpoints import DTYPES, TASKS, Checkpoint, find_directory
from pybackend_sdk.backend import boolean, choice, read_parameters, text, threads_per_instance, whole_number
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import get_model_dir

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
    "INTRA_OP_THREAD_COUNT": whole_number(at_least=1),
}

_DEFAULT_MAX_TOKENS = 16
"""As in vLLM, whose parameters clients send."""


class Settings(NamedTuple):
    """The parameters of a model that its task reads.

    Attributes:
        dtype: of the weights, one of DTYPES.
        max_length: the most tokens of a text, or of prompt and answer; None for the model's own limit.
        pooling: one of POOLINGS.
        normalize: whether embeddings have length 1.
        aggregation: how tokens become entities.
        hypothesis: the sentence of zero-shot classification, with ``{}`` for the label.
        max_tokens: of an answer, if the request does not say.
        max_texts: the most texts that an instance continues at a time.
    """

    dtype: str = "auto"
    max_length: Optional[int] = None
    pooling: str = "mean"
    normalize: bool = False
    aggregation: str = "simple"
    hypothesis: str = "This example is {}."
    max_tokens: int = _DEFAULT_MAX_TOKENS
    max_texts: int = 16


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Read the parameters of a model.

    Raises:
        TritonModelException: a parameter does not exist, or its value is of another type.
    """
    values = read_parameters(config, PARAMETERS)
    names = {"hypothesis_template": "hypothesis"}
    lower = {names.get(name.lower(), name.lower()): value for name, value in values.items()}
    settings = Settings(**{name: value for name, value in lower.items() if name in Settings._fields})
    if "{}" not in settings.hypothesis:
        raise TritonModelException(
            f"model '{config['name']}': parameters HYPOTHESIS_TEMPLATE must have {{}} where the label goes, it is "
            f"'{settings.hypothesis}'"
        )
    return settings


def open_checkpoint(config: Mapping[str, Any]) -> Checkpoint:
    """Find the model of a configuration, and its task.

    Raises:
        TritonModelException: there is none, or it tells no task.
    """
    values = read_parameters(config, PARAMETERS)
    directory = find_directory(get_model_dir(), values.get("MODEL", ""), values.get("CACHE_DIRECTORY", ""))
    return Checkpoint(directory, values.get("TASK", ""), values.get("TRUST_REMOTE_CODE", False))


def use_threads(config: Mapping[str, Any]) -> None:
    """Set the number of threads of this process, which serves one instance."""
    values = read_parameters(config, PARAMETERS)
    torch.set_num_threads(values.get("INTRA_OP_THREAD_COUNT") or threads_per_instance(config))
