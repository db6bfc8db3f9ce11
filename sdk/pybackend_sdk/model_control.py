"""Loads and unloads other models from model code, on servers that allow it."""

from typing import Dict, Optional

from pybackend_sdk.arguments import text
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import current_runtime


def load_model(model_name: str, config: str = "", files: Optional[Dict[str, bytes]] = None) -> None:
    """Load or reload a model, and wait until it is ready.

    Args:
        model_name: the model.
        config: its configuration as JSON text; empty to use the one in the repository.
        files: contents by path, where each path has the form ``file:<path in the model's folder>``.

    Raises:
        TypeError: a name or configuration is not text.
        TritonModelException: ``files`` is not such a dict, or the model cannot be loaded.
    """
    name = text("load_model", "model_name", model_name)
    if files is not None and not _are_files(files):
        raise TritonModelException(
            f"failed to load model '{name}', files should be a dictionary of file paths and file contents"
        )
    current_runtime().load_model(name, text("load_model", "config", config), files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Begin to unload a model; returns before it is unloaded.

    Args:
        model_name: the model.
        unload_dependents: also unload the models that an ensemble needs.

    Raises:
        TypeError: the name is not text.
        TritonModelException: the model cannot be unloaded.
    """
    current_runtime().unload_model(text("unload_model", "model_name", model_name), bool(unload_dependents))


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model accepts requests; False for one that was never loaded.

    Args:
        model_name: the model.
        model_version: a decimal version; empty for any.

    Raises:
        TypeError: the name or version is not text.
        TritonModelException: the version is no number.
    """
    name = text("is_model_ready", "model_name", model_name)
    return current_runtime().is_model_ready(name, text("is_model_ready", "model_version", model_version))


def _are_files(files: object) -> bool:
    return isinstance(files, dict) and all(
        isinstance(path, str) and isinstance(content, bytes) for path, content in files.items()
    )
