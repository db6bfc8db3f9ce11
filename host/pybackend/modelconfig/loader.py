"""Builds a model's effective configuration from its directory, in two steps around ``auto_complete_config``.

``load_config`` reads the author's configuration, which is enough to start the model's code. ``finish_config`` merges
the code's additions, fills in defaults and validates the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.auto_complete import merge_completed
from pybackend.modelconfig.backend import check_backend, inferred_backend
from pybackend.modelconfig.backend_places import BackendPlaces
from pybackend.modelconfig.bounds import MOST_CONFIG_BYTES, check_bounds
from pybackend.modelconfig.ensemble import validate_ensemble
from pybackend.modelconfig.instances import InstanceSpec, instances
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, PYTHON
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, config_file, similar_file
from pybackend.modelconfig.normalisation import with_policies, with_scheduling, without_gpus
from pybackend.modelconfig.parser import (
    Document,
    parse_config_json,
    parse_config_text,
    read_config_text,
    repeated_step_inputs,
)
from pybackend.modelconfig.python_based import find_runtime
from pybackend.modelconfig.schema import ModelConfig, from_document
from pybackend.modelconfig.validation import refuse_unserved, unserved_warnings, validate, validate_model_file


def load_config(
    model_directory: Path,
    *,
    auto_complete: bool,
    backends: BackendPlaces | None = None,
    config_json: str | None = None,
    config_name: str = "",
) -> ModelConfig:
    """The configuration in a model's directory, before auto-completion.

    Args:
        model_directory: its name is the model's name.
        auto_complete: infer missing fields of config.pbtxt, and allow the file itself to be missing.
        config_json: replaces config.pbtxt, as JSON text.
        config_name: ``configs/<config_name>.pbtxt`` replaces config.pbtxt in models that have it.

    Returns:
        A configuration whose name, backend, runtime, model file and version policy are validated; the rest is
        unchecked. For an ensemble, only name and version policy are validated.

    Raises:
        ModelConfigError: the file is required but missing, does not parse, names another model, or requests an
            unsupported feature.
        ModelLoadError: the directory cannot be read.
    """
    document, source, text = _document(model_directory, config_json, config_name, auto_complete=auto_complete)
    refuse_unserved(from_document(document, source))
    if from_document(document, source).is_ensemble:
        _refuse_repeated_inputs(text, model_directory.name, source)
        return from_document(with_policies(document), source)
    if not document["backend"]:
        document["backend"] = inferred_backend(document, model_directory, by_name=auto_complete)
    if document["backend"] == PYTHON and not document["default_model_filename"]:
        document["default_model_filename"] = DEFAULT_MODEL_FILENAME
    document["backend"] = check_backend(from_document(document, source))
    if document["backend"] != PYTHON:
        document["runtime"] = find_runtime(
            from_document(document, source), model_directory, backends or BackendPlaces()
        )
    config = from_document(with_policies(document), source)
    validate_model_file(config)
    return config


def load_policy(model_directory: Path, *, config_json: str | None = None, config_name: str = "") -> ModelConfig:
    """The same, as far as the version policy needs it: the files of versions may still be missing.

    Raises:
        ModelConfigError: the configuration does not parse.
    """
    document, source, _text = _document(model_directory, config_json, config_name, auto_complete=True)
    return from_document(with_policies(document), source)


def finish_config(config: ModelConfig, completed: Mapping[str, Any] | None, gpu_count: int) -> ModelConfig:
    """The effective configuration; its ``warnings`` name settings that will have no effect.

    Args:
        completed: what the model's ``auto_complete_config`` returned; None if it was not called.

    Raises:
        ModelConfigError: the configuration contradicts itself or requests an unsupported feature.
    """
    document = config.document if completed is None else merge_completed(config.document, completed)
    check_bounds(document, config.source)
    finished = from_document(with_scheduling(document, gpu_count), config.source)
    refuse_unserved(finished)
    validate(finished, gpu_count)
    return finished.with_warnings(unserved_warnings(finished))


def on_cpu(config: ModelConfig) -> ModelConfig | None:
    """The configuration with its GPU instances on the CPU; None if it has none."""
    document = without_gpus(config.document)
    return None if document is None else from_document(document, config.source)


def finish_ensemble(config: ModelConfig) -> ModelConfig:
    """The effective configuration of an ensemble, except for fields that depend on its parts.

    Raises:
        ModelConfigError: the configuration contradicts itself.
    """
    validate_ensemble(config)
    return config.with_warnings(unserved_warnings(config))


def planned_instances(config: ModelConfig, gpu_count: int) -> list[InstanceSpec]:
    """The instances of an unfinished configuration; completion never changes instance groups."""
    return instances(from_document(with_scheduling(config.document, gpu_count), config.source))


def _document(
    model_directory: Path, config_json: str | None, config_name: str, *, auto_complete: bool
) -> tuple[Document, str, str]:
    """The written configuration with its name, its source and its text, ``""`` for JSON."""
    if config_json is None:
        text, source = _written_text(model_directory, config_file(model_directory, config_name), auto_complete)
        document = parse_config_text(text, source)
    else:
        text, source = "", f"the configuration given to load '{model_directory.name}'"
        document = parse_config_json(_read_json(config_json, source), source)
    _take_name(document, model_directory.name, source)
    check_bounds(document, source)
    return document, source, text


def _written_text(model_directory: Path, name: str, auto_complete: bool) -> tuple[str, str]:
    """The text of the configuration file, empty if there is no such file, and its name in messages."""
    path = model_directory / name
    try:
        path.lstat()  # a dangling link is a mistake, not a missing file
    except FileNotFoundError:
        if not auto_complete:
            raise ModelConfigError(
                f"failed to read text proto from {path}: there is no such file, and auto-complete, which could do "
                "without it, is disabled"
            ) from None
        similar = similar_file(model_directory, CONFIG_FILENAME)
        hint = f": rename {similar}" if similar else ""
        return "", f"no {CONFIG_FILENAME} in {model_directory}{hint}"
    except OSError:
        pass  # reading the file will raise the precise error
    return read_config_text(model_directory, name), str(path)


def _refuse_repeated_inputs(text: str, ensemble: str, source: str) -> None:
    for number, model, name in repeated_step_inputs(text):
        raise ModelConfigError(
            f"input '{name}' in model '{model}' is mapped to multiple ensemble tensors for ensemble "
            f"'{ensemble}' step {number} ({source})"
        )


def _read_json(text: str, source: str) -> Mapping[str, Any]:
    if len(text) > MOST_CONFIG_BYTES:
        raise ModelConfigError(
            f"failed to read model configuration from {source}: it has {len(text)} characters, more than the "
            f"limit of {MOST_CONFIG_BYTES}"
        )
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
