"""A model's configuration, from its directory to the effective one: the two steps around ``auto_complete_config``.

``load_config`` reads what the author wrote, which is enough to start the model's code; ``finish_config`` takes what
that code added, fills the defaults and checks the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.auto_complete import merge_completed
from pybackend.modelconfig.backend import DEFAULT_MODEL_FILENAME, PYTHON, check_backend, inferred_backend
from pybackend.modelconfig.ensemble_graph import validate_ensemble
from pybackend.modelconfig.instances import InstanceSpec, instances
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.normalisation import with_policies, with_scheduling
from pybackend.modelconfig.parser import Document, parse_config_json, read_config_file, repeated_step_inputs
from pybackend.modelconfig.python_based import find_runtime
from pybackend.modelconfig.schema import ModelConfig, from_document
from pybackend.modelconfig.unserved import refuse_unserved, unserved_warnings
from pybackend.modelconfig.validation import validate, validate_model_file
from pybackend.settings import DEFAULT_BACKEND_DIRECTORY


def load_config(
    model_directory: Path,
    *,
    auto_complete: bool,
    backend_directory: Path = DEFAULT_BACKEND_DIRECTORY,
    config_json: str | None = None,
) -> ModelConfig:
    """What a model's directory says, before its code has been asked.

    Args:
        model_directory: its name is the model's name.
        auto_complete: infer what config.pbtxt leaves out, and do without the file if there is none.
        backend_directory: holds the backends that are written in Python.
        config_json: what to take in place of config.pbtxt, as JSON text.

    Returns:
        A configuration whose name, backend, runtime, model file and version policy can be relied on; the rest is
        unchecked. Of an ensemble, only name and version policy.

    Raises:
        ModelConfigError: the file is missing where it is needed, does not parse, names another model, or asks for what
            this server cannot do.
        ModelLoadError: the directory cannot be read.
    """
    if config_json is None:
        document, source = _written_document(model_directory, auto_complete)
    else:
        source = f"the configuration given to load '{model_directory.name}'"
        document = parse_config_json(_read_json(config_json, source), source)
    _take_name(document, model_directory.name, source)
    refuse_unserved(from_document(document, source))
    if from_document(document, source).is_ensemble:
        if config_json is None:
            _refuse_repeated_inputs(model_directory)
        return from_document(with_policies(document), source)
    if not document["backend"] and auto_complete:
        document["backend"] = inferred_backend(document, model_directory)
    if document["backend"] == PYTHON and not document["default_model_filename"]:
        document["default_model_filename"] = DEFAULT_MODEL_FILENAME
    document["backend"] = check_backend(from_document(document, source))
    if document["backend"] != PYTHON:
        document["runtime"] = find_runtime(from_document(document, source), model_directory, backend_directory)
    config = from_document(with_policies(document), source)
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


def finish_ensemble(config: ModelConfig) -> ModelConfig:
    """The effective configuration of an ensemble, as far as it does not depend on its parts.

    Args:
        config: from :func:`load_config`.

    Raises:
        ModelConfigError: the configuration contradicts itself.
    """
    validate_ensemble(config)
    return config.with_warnings(unserved_warnings(config))


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


def _refuse_repeated_inputs(model_directory: Path) -> None:
    path = model_directory / CONFIG_FILENAME
    for number, model, name in repeated_step_inputs(path):
        raise ModelConfigError(
            f"input '{name}' in model '{model}' is mapped to multiple ensemble tensors for ensemble "
            f"'{model_directory.name}' step {number} ({path})"
        )


def _read_json(text: str, source: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"failed to read model configuration from {source}: it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelConfigError(
            f"failed to read model configuration from {source}: expected a JSON object such as "
            '{"backend": "python"}, got ' + f"{text[:60]}"
        )
    return value


def _take_name(document: Document, directory_name: str, source: str) -> None:
    if not document["name"]:
        document["name"] = directory_name
    elif document["name"] != directory_name:
        raise ModelConfigError(
            f"unexpected directory name '{directory_name}' for model '{document['name']}', directory name must equal "
            f"model name: rename either, or leave 'name' out ({source})"
        )
