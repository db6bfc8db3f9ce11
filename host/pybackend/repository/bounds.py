"""Limits the rights of models that are loaded on request.

If a confined model requests the load, its own rights are the limit: see :class:`pybackend.sandbox.grant.Grant`. If a
client does, the operator's choices are: see :meth:`Bounds.of_client`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pybackend.environment.specification import is_specification
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.model.host import ModelHost
from pybackend.model.model import Model
from pybackend.model.source import ModelSource
from pybackend.modelconfig.backends import backend_file
from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, PYTHON
from pybackend.modelconfig.loader import load_config
from pybackend.modelconfig.model_directory import config_file
from pybackend.modelconfig.schema import ModelConfig, from_document
from pybackend.sandbox.file_rules import contains
from pybackend.sandbox.grant import Grant
from pybackend.sandbox.options import rank
from pybackend_wire.confinement import LEVELS, OFF

_ENVIRONMENT, _LEVEL = "EXECUTION_ENV_PATH", "SANDBOX"

_FILE_FIELDS = frozenset(
    {"backend", "runtime", "default_model_filename", "label_filename", "input_data_file", "data_file"}
)
"""Configuration fields that name files the server reads, or code that it runs."""

_USUAL = frozenset({("backend", PYTHON), ("default_model_filename", DEFAULT_MODEL_FILENAME)})


class Bounds:
    """Remembers models' rights, to limit models that could have changed their own configuration."""

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._had: dict[str, Grant] = {}

    def note(self, name: str, models: Iterable[Model], *, is_repositorys: bool) -> None:
        """Record the rights of a model's versions, even if loading them failed.

        ``is_repositorys`` means that no load request limited their rights, so that the operator has chosen them.
        """
        for model in models:
            had = None if model.sandbox is None else model.sandbox.last_grant
            if had is not None and (is_repositorys or name not in self._had):
                self._had[name] = had

    def of_load(self, grant: Grant | None, source: ModelSource, *, brings: bool) -> tuple[Grant, ...]:
        """The limits for a model about to be loaded; empty if the operator installed it. Blocking.

        ``grant`` has the rights of the requesting model, None if it is as trusted as the operator; ``brings`` means
        that a configuration or files came with the request.
        """
        if grant is None:
            return ()
        if not brings:
            # A model that could have written the configuration may be its author, wherever the file is.
            had = self._had.get(source.full_name)
            path = source.directory / config_file(source.directory, self._host.settings.config_name)
            return tuple(one for one in (grant, had) if one is not None and one.may_change(path))
        written = None if source.is_brought else _written(source.directory, self._host)
        _check_files(grant, source, written)
        _check_code(grant, source, written, self._host)
        return (grant.at_least(_level(written)),)

    def of_client(self, source: ModelSource) -> ModelSource:
        """Limit a model whose configuration, or files, came with a client's load request. Blocking.

        A client does not choose how code of the repository is confined, nor in which environment it runs: these
        parameters stay as they are written there. Code that a client sends has the server's usual sandbox, and runs on
        the server's Python or in an environment that was sent with it. A stricter level may be named.
        """
        written = None if source.is_brought else _written(source.directory, self._host)
        kept = {} if written is None else _sandbox_parameters(written)
        if self._host.sandbox is not None:
            usual = self._host.sandbox.settings.level
            for key, value in _sandbox_parameters(source.config).items():
                stricter = key == _LEVEL and value in LEVELS and rank(value) >= rank(kept.get(_LEVEL, usual))
                if value != kept.get(key) and not stricter:
                    raise _not_for_clients(key, value, source)
                kept[key] = value
        _check_client_environment(source, written)
        document = source.config.document
        parameters = {**document["parameters"], **{key: {"string_value": value} for key, value in kept.items()}}
        return replace(source, config=from_document({**document, "parameters": parameters}, source.config.source))


def _sandbox_parameters(config: ModelConfig) -> dict[str, str]:
    return {key: value for key, value in config.parameters.items() if key.startswith(_LEVEL)}


def _check_client_environment(source: ModelSource, written: ModelConfig | None) -> None:
    text, path = source.config.parameters.get(_ENVIRONMENT), source.environment_path
    if not text or path is None or (written is not None and text == written.parameters.get(_ENVIRONMENT)):
        return
    inside = contains(os.path.realpath(source.directory), os.path.realpath(path))
    if not source.is_brought or not inside or is_specification(path):
        raise _not_for_clients(_ENVIRONMENT, text, source)


def _not_for_clients(key: str, value: str, source: ModelSource) -> ModelLoadError:
    return ModelLoadError(
        f"parameters {key} is '{value}' in {source.config.source}: a client cannot choose a model's environment or give "
        "it more rights than the server's operator does. Leave it out, or write it into the config.pbtxt in the repository",
        ErrorCode.INVALID_ARG,
    )


def _written(directory: Path, host: ModelHost) -> ModelConfig | None:
    """The model's configuration in the repository, None if it cannot be read."""
    try:
        return load_config(
            directory,
            auto_complete=host.settings.auto_complete,
            backends=host.backends,
            config_name=host.settings.config_name,
        )
    except ModelLoadError:
        return None


def _level(written: ModelConfig | None) -> str:
    level = OFF if written is None else written.parameters.get("SANDBOX", OFF)
    return level if level in LEVELS else OFF


def _check_files(grant: Grant, source: ModelSource, written: ModelConfig | None) -> None:
    """Refuse files that the requesting model could not read: it must not learn their content or run code with them."""
    if source.is_brought or grant.reaches(os.path.realpath(source.directory)):
        return
    known = _USUAL if written is None else _USUAL | set(_references(written))
    for name, text in sorted(set(_references(source.config)) - known):
        raise ModelLoadError(
            f"'{name}' is '{text}' in {source.config.source}, and not in the repository's configuration: model "
            f"'{grant.model}' may not choose files of a model whose directory it cannot read. Leave it out"
        )


def _references(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield from _named(config.document)
    if config.parameters.get(_ENVIRONMENT):
        yield _ENVIRONMENT, config.parameters[_ENVIRONMENT]


def _named(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in _FILE_FIELDS and isinstance(inner, str) and inner:
                yield name, inner
            yield from _named(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(inner)


def _check_code(grant: Grant, source: ModelSource, written: ModelConfig | None, host: ModelHost) -> None:
    """Require code that the requesting model could use itself, that the repository selects, or that came along."""
    config = source.config
    if config.is_ensemble:
        return
    same = {"backend": written is not None and config.backend == written.backend}
    text = config.parameters.get(_ENVIRONMENT)
    same[_ENVIRONMENT] = written is not None and text == written.parameters.get(_ENVIRONMENT)
    code = backend_file(config, host.backends)
    if code is not None and not same["backend"] and not _may_use(grant, code):
        raise _unreachable(grant, "backend", code, config)
    path = source.environment_path
    if not text or path is None or same[_ENVIRONMENT]:
        return
    if is_specification(path):
        raise ModelLoadError(
            f"{_ENVIRONMENT} is '{text}', which lists packages: no packages are installed for a configuration that a "
            f"model sends. Name a packed environment, or leave it out ({config.source})"
        )
    inside = source.is_brought and contains(os.path.realpath(source.directory), os.path.realpath(path))
    if not inside and not _may_use(grant, path):
        raise _unreachable(grant, _ENVIRONMENT, path, config)


def _may_use(grant: Grant, path: Path) -> bool:
    return grant.reaches(os.path.realpath(path)) and not grant.may_change(path)


def _unreachable(grant: Grant, name: str, path: Path, config: ModelConfig) -> ModelLoadError:
    return ModelLoadError(
        f"{name} leads to {path}, which model '{grant.model}' cannot read, or could replace: models that it loads must "
        f"not use that either. Send an environment with the files, or leave it out ({config.source})"
    )
