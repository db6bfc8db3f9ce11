"""A model's configuration, from its directory to the effective one: the two steps around ``auto_complete_config``.

``load_config`` reads what the author wrote, which is enough to start the model's code; ``finish_config`` takes what
that code added, fills the defaults and checks the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.auto_complete import merge_completed
from pybackend.modelconfig.backend import DEFAULT_MODEL_FILENAME, PYTHON, check_backend, inferred_backend
from pybackend.modelconfig.instances import InstanceSpec, instances
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.normalisation import with_policies, with_scheduling
from pybackend.modelconfig.parser import Document, parse_config_json, read_config_file
from pybackend.modelconfig.schema import ModelConfig, from_document
from pybackend.modelconfig.unserved import refuse_unserved, unserved_warnings
from pybackend.modelconfig.validation import validate, validate_model_file


def load_config(model_directory: Path, *, auto_complete: bool) -> ModelConfig:
    """What a model's directory says, before its code has been asked.

    Args:
        model_directory: its name is the model's name.
        auto_complete: infer what config.pbtxt leaves out, and do without the file if there is none.

    Returns:
        A configuration whose name, backend, model file and version policy can be relied on; the rest is unchecked.

    Raises:
        ModelConfigError: the file is missing where it is needed, does not parse, names another model, or asks for what
            this server cannot do.
        ModelLoadError: the directory cannot be read.
    """
    document, source = _written_document(model_directory, auto_complete)
    _take_name(document, model_directory.name, source)
    refuse_unserved(from_document(document, source))
    if not document["backend"] and auto_complete:
        document["backend"] = inferred_backend(document, model_directory)
    if document["backend"] == PYTHON and not document["default_model_filename"]:
        document["default_model_filename"] = DEFAULT_MODEL_FILENAME
    config = from_document(with_policies(document), source)
    check_backend(config)
    validate_model_file(config)
    return config


def finish_config(config: ModelConfig, completed: Mapping[str, Any] | None, gpu_count: int) -> ModelConfig:
    """The effective configuration, and in its ``warnings`` what will not work as configured.

    Args:
        config: from :func:`load_config`.
        completed: what the model's ``auto_complete_config`` returned; None if it was not called.
        gpu_count: GPUs of this machine.

    Raises:
        ModelConfigError: the whole contradicts itself or asks for what this server cannot do.
    """
    document = config.document if completed is None else merge_completed(config.document, completed)
    finished = from_document(with_scheduling(document, gpu_count), config.source)
    refuse_unserved(finished)
    validate(finished, gpu_count)
    return finished.with_warnings(unserved_warnings(finished))


def planned_instances(config: ModelConfig, gpu_count: int) -> list[InstanceSpec]:
    """The instances that an unfinished configuration will have: completing it never changes instance groups."""
    return instances(from_document(with_scheduling(config.document, gpu_count), config.source))


def _written_document(model_directory: Path, auto_complete: bool) -> tuple[Document, str]:
    """What config.pbtxt says, or all defaults without one, and how to name that in messages."""
    path = model_directory / CONFIG_FILENAME
    try:
        path.lstat()  # a dangling link is a mistake, not a missing file
    except FileNotFoundError:
        if not auto_complete:
            raise ModelConfigError(
                f"failed to read text proto from {path}: there is no such file, and auto-complete, which could do "
                "without it, is disabled"
            ) from None
        source = f"no {CONFIG_FILENAME} in {model_directory}"
        return parse_config_json({}, source), source
    except OSError:
        pass  # reading the file tells why
    return read_config_file(path), str(path)


def _take_name(document: Document, directory_name: str, source: str) -> None:
    if not document["name"]:
        document["name"] = directory_name
    elif document["name"] != directory_name:
        raise ModelConfigError(
            f"unexpected directory name '{directory_name}' for model '{document['name']}', directory name must equal "
            f"model name: rename either, or leave 'name' out ({source})"
        )
