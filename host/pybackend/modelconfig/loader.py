"""Builds a model's effective configuration from its directory, in two steps around ``auto_complete_config``.

``load_config`` reads the author's configuration, which is enough to start the model's code. ``finish_config`` merges
the code's additions, fills in defaults and validates the result.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from pybackend.author_files import read_start_beneath
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.backends import BackendPlaces, find_runtime
from pybackend.modelconfig.bounds import MOST_CONFIG_BYTES, check_bounds, check_extent
from pybackend.modelconfig.ensemble import validate_ensemble
from pybackend.modelconfig.known_backends import (
    BACKEND_OF_PLATFORM,
    DEFAULT_MODEL_FILENAME,
    PYTHON,
    backend_of_filename,
    backend_of_files,
    usual_filename,
)
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, config_file, printable, scan_versions, similar_file
from pybackend.modelconfig.normalisation import replaced, with_policies, with_scheduling, without_gpus
from pybackend.modelconfig.parser import (
    Document,
    parse_config_json,
    parse_config_text,
    read_config_text,
    repeated_step_inputs,
)
from pybackend.modelconfig.schema import InstanceSpec, ModelConfig, Scheduling, from_document, instances, scheduling_of
from pybackend.modelconfig.validation import (
    refuse_unserved,
    unserved_warnings,
    validate,
    validate_instances,
    validate_model_file,
)


def load_config(
    model_directory: Path,
    *,
    auto_complete: bool,
    backends: BackendPlaces | None = None,
    config_json: str | None = None,
    config_name: str = "",
) -> ModelConfig:
    """The configuration in a model's directory, before auto-completion.

    Validated are its name, backend, runtime, model file and version policy; of an ensemble, name and version policy.

    Args:
        model_directory: its name is the model's name.
        auto_complete: infer missing fields of config.pbtxt, and allow the file itself to be missing.
        config_json: replaces config.pbtxt, as JSON text.
        config_name: ``configs/<config_name>.pbtxt`` replaces config.pbtxt in models that have it.
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
    """The same, as far as the version policy needs it: the files of versions may still be missing."""
    document, source, _text = _document(model_directory, config_json, config_name, auto_complete=True)
    return from_document(with_policies(document), source)


def finish_config(
    config: ModelConfig, completed: Mapping[str, Any] | None, gpu_count: int, gpus: str = ""
) -> ModelConfig:
    """The effective configuration; its ``warnings`` name settings that will have no effect.

    ``gpus`` is for :func:`validate`.
    """
    document = config.document if completed is None else merge_completed(config.document, completed)
    check_bounds(document, config.source)
    finished = from_document(with_scheduling(document, gpu_count), config.source)
    refuse_unserved(finished)
    validate(finished, gpu_count, gpus)
    return finished.with_warnings(unserved_warnings(finished))


def on_cpu(config: ModelConfig) -> ModelConfig | None:
    """The configuration with its GPU instances on the CPU; None if it has none."""
    document = without_gpus(config.document)
    return None if document is None else from_document(document, config.source)


def finish_ensemble(config: ModelConfig) -> ModelConfig:
    """The effective configuration of an ensemble, except for fields that depend on its parts."""
    validate_ensemble(config)
    return config.with_warnings(unserved_warnings(config))


def planned_instances(config: ModelConfig, gpu_count: int) -> list[InstanceSpec]:
    """The instances of an unfinished configuration; completion never changes instance groups."""
    return instances(_planned(config, gpu_count))


def check_instances(config: ModelConfig, gpu_count: int, gpus: str) -> None:
    """Check the instance groups of an unfinished configuration; ``gpus`` is for :func:`validate`."""
    validate_instances(_planned(config, gpu_count), gpu_count, gpus)


def _planned(config: ModelConfig, gpu_count: int) -> ModelConfig:
    return from_document(with_scheduling(config.document, gpu_count), config.source)


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
        misplaced = "" if similar else _config_of_version(model_directory)
        hint = f": rename {similar}" if similar else f": move {misplaced} there" if misplaced else ""
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


_MOST_FILES = 1000


def inferred_backend(document: Mapping[str, Any], model_directory: Path, *, by_name: bool) -> str:
    """Infer the backend of a configuration that names none, from its platform or its files.

    ``""`` if nothing indicates a backend; then ``by_name`` is False, or the platform names one. The lowest version with
    such a file decides.
    """
    platform = document["platform"]
    if platform:
        return BACKEND_OF_PLATFORM.get(platform, "")
    filename = document["default_model_filename"]
    versions = [] if filename else list(scan_versions(model_directory).versions.values())
    found = next(filter(None, map(backend_of_files, versions)), "") if versions else backend_of_filename(filename)
    if found or not by_name:
        return found
    name = document["name"]
    backend = str(name).partition(".")[2]
    if not backend:
        raise ModelConfigError(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            f"configuration. Expected model name of the form 'model.<backend_name>'. {_advice(model_directory, versions)}"
        )
    return backend


def _advice(model_directory: Path, versions: Sequence[Path]) -> str:
    """A sentence that names a file in the wrong place or of another name, or else where files belong."""
    first = versions[0] if versions else model_directory / "1"
    misplaced = _config_of_version(model_directory)
    if misplaced:
        command = f"mv {shlex.quote(misplaced)} {shlex.quote(str(model_directory / CONFIG_FILENAME))}"
        return f"There is {misplaced}, which is not read, because a configuration belongs beside the versions: `{command}`."
    if not versions and backend_of_files(model_directory):
        return f"The model's files lie in {model_directory}, and belong into a version's directory: move them into {first}."
    for directory in (*versions, model_directory):
        for name in _files(directory):
            usual = usual_filename(name)
            if not usual or (usual == DEFAULT_MODEL_FILENAME and not _defines_model(directory, name)):
                continue
            if directory == model_directory or name != usual:
                command = f"mv {shlex.quote(str(directory / name))} {shlex.quote(str(first / usual))}"
                kept = (
                    ""
                    if directory == model_directory
                    else f', or name it in config.pbtxt, default_model_filename: "{name}"'
                )
                return f"There is {directory / name}, which no backend looks for: `{command}`{kept}."
    other = "" if versions else f" If {model_directory} is no model, move it out of the repository."
    return (
        f'For a Python model, put its code into {model_directory / "1" / DEFAULT_MODEL_FILENAME} or set backend: "python" in '
        f"config.pbtxt; a file of another framework tells its backend by its name, such as model.onnx.{other}"
    )


def _config_of_version(model_directory: Path) -> str:
    """The configuration file that lies in a version's directory, where it is not read; ``""`` if there is none."""
    if os.path.lexists(model_directory / CONFIG_FILENAME):
        return ""
    places = (place / CONFIG_FILENAME for place in scan_versions(model_directory).versions.values())
    return next((str(path) for path in places if path.is_file()), "")


_MOST_CODE_BYTES = 4 * 1024 * 1024


def _defines_model(directory: Path, name: str) -> bool:
    """Whether a Python file is a model's, and not a script that happens to lie there."""
    try:
        return b"class TritonPythonModel" in read_start_beneath(directory, name, _MOST_CODE_BYTES)
    except OSError:
        return False


def _files(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(printable(entry.name) for entry in islice(entries, _MOST_FILES))
    except OSError:
        return []


def check_backend(config: ModelConfig) -> str:
    """The backend of a configuration, after checking that platform and backend agree."""
    name, platform, backend, source = config.name, config.platform, config.backend, config.source
    if not platform and not backend:
        raise ModelConfigError(f"must specify 'platform' or 'backend' for '{name}': set backend: \"python\" ({source})")
    if not backend and platform not in BACKEND_OF_PLATFORM:
        raise ModelConfigError(
            f"unexpected platform type '{platform}' for {name}: leave 'platform' out and set backend: \"python\" "
            f"({source})"
        )
    if backend and BACKEND_OF_PLATFORM.get(platform, backend) != backend:
        raise ModelConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}. A Python model has no 'platform' "
            f"({source})"
        )
    return backend or BACKEND_OF_PLATFORM[platform]


_TENSOR_FIELDS = ("max_batch_size", "input", "output")
_SCHEDULING_FIELDS = tuple(str(choice) for choice in Scheduling if choice is not Scheduling.DEFAULT)
_POLICY_FIELD = "model_transaction_policy"


def merge_completed(document: Mapping[str, Any], completed: Mapping[str, Any]) -> Document:
    """The document after auto-completion.

    Only the batch size, the tensors, the decoupled policy and, if none is configured, the scheduler are adopted; every
    other change has no effect.
    """
    source = f"auto_complete_config of model '{document['name']}'"
    allowed = (*_TENSOR_FIELDS, *_SCHEDULING_FIELDS, _POLICY_FIELD)
    returned = {name: completed[name] for name in allowed if completed.get(name) is not None}
    configured = scheduling_of(document)
    chosen = [name for name in _SCHEDULING_FIELDS if name in returned]
    _check_scheduling(configured, chosen, source)
    if configured is not Scheduling.DEFAULT:
        returned.pop(configured, None)
    check_extent(returned, source)
    return replaced(document, returned, source)


def _check_scheduling(configured: Scheduling, chosen: list[str], source: str) -> None:
    other = next((name for name in chosen if name != configured), None)
    if other is None:
        return
    if configured is not Scheduling.DEFAULT:
        raise ModelConfigError(
            f"Cannot update scheduling choice from {configured} to {other} when auto-completing. "
            f"Change config.pbtxt, or {source}, so that both name the same one.",
            ErrorCode.INTERNAL,
        )
    if len(chosen) > 1:
        raise ModelConfigError(f"{source} set more than one scheduling choice: {', '.join(chosen)}; keep one")
