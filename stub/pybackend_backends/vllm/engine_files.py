"""``model.json``: the arguments of the engine. ``multi_lora.json``: the adapters that requests can name."""

import dataclasses
import json
import os
from typing import Any, Dict, Mapping

from pybackend_sdk.backend import model_path
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.spelling import closest

ENGINE_FILE = "model.json"
ADAPTERS_FILE = "multi_lora.json"

_PLACES = ("model", "tokenizer")
"""Arguments that can be directories."""


def read_engine_arguments(config: Mapping[str, Any]) -> Dict[str, Any]:
    """The contents of ``model.json``. Directories may be relative to it.

    Raises:
        TritonModelException: the file is missing, is no JSON object, or names no model.
    """
    path = model_path(config, [ENGINE_FILE])
    arguments = _json_object(config, path)
    if not isinstance(arguments.get("model"), str):
        raise TritonModelException(
            f"model '{config['name']}': {path} has no 'model': write the directory of the weights, or the id of a model of "
            'Hugging Face, such as {"model": "weights"}'
        )
    for name in _PLACES:
        if isinstance(arguments.get(name), str):
            arguments[name] = _place(path, arguments[name])
    return arguments


def read_adapters(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> Dict[str, str]:
    """The directories of LoRA adapters by the names that requests use; none if the engine does not enable them.

    Raises:
        TritonModelException: the file is not an object of names and directories.
    """
    path = os.path.join(os.path.dirname(model_path(config, [ENGINE_FILE])), ADAPTERS_FILE)
    if not arguments.get("enable_lora") or not os.path.exists(path):
        return {}
    adapters = _json_object(config, path)
    if not all(isinstance(directory, str) for directory in adapters.values()):
        raise TritonModelException(
            f"model '{config['name']}': {path} must have the directory of an adapter for each name, such as "
            '{"summaries": "/adapters/summaries"}'
        )
    return {name: _place(path, directory) for name, directory in adapters.items()}


def make_engine_arguments(config: Mapping[str, Any], arguments: Mapping[str, Any], arguments_class: Any) -> Any:
    """The arguments as vLLM's ``AsyncEngineArgs``.

    Raises:
        TritonModelException: this version of vLLM has no argument of that name, or refuses a value.
    """
    known = {field.name for field in dataclasses.fields(arguments_class)}
    given = dict(arguments)
    # Until version 0.10, requests were logged unless this argument was true. Many files have it.
    if "disable_log_requests" in given and "disable_log_requests" not in known:
        given.setdefault("enable_log_requests", not given.pop("disable_log_requests"))
    for name in given:
        if name not in known:
            near = closest(name, known)
            advice = f": did you mean {near}?" if near else ""
            raise TritonModelException(
                f"model '{config['name']}': {ENGINE_FILE} has '{name}', which is no engine argument of the installed "
                f"vLLM{advice}"
            )
    try:
        return arguments_class(**given)
    except Exception as error:  # noqa: BLE001  it checks values with any type
        raise TritonModelException(f"model '{config['name']}': vLLM refuses {ENGINE_FILE}: {error}") from None


def _json_object(config: Mapping[str, Any], path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            contents = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise TritonModelException(f"model '{config['name']}': {path} cannot be read as JSON: {error}") from None
    if not isinstance(contents, dict):
        raise TritonModelException(f"model '{config['name']}': {path} must be a JSON object")
    return contents


def _place(path: str, name: str) -> str:
    beside = os.path.join(os.path.dirname(path), name)
    return os.path.normpath(beside) if os.path.isdir(beside) else name
