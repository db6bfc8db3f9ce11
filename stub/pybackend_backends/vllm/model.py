"""The backend: serves the language model that ``model.json`` names."""

import dataclasses
import json
import os
from importlib import import_module
from typing import Any, Dict, Mapping, Sequence

from pybackend_backends.text_requests import TEXT_SIGNATURE, RequestError, read_template, refuse, require_decoupled
from pybackend_backends.vllm.engine import Engine, stat_logger_factory
from pybackend_backends.vllm.generation import GenerationReader
from pybackend_sdk.backend import (
    Ignored,
    boolean,
    check_config,
    complete_config,
    model_path,
    read_parameters,
    require,
    text,
)
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.spelling import closest

ENGINE_FILE = "model.json"
ADAPTERS_FILE = "multi_lora.json"

_PLACES = ("model", "tokenizer")
"""Arguments that can be directories."""


def read_engine_arguments(config: Mapping[str, Any]) -> Dict[str, Any]:
    """The contents of ``model.json``. Directories may be relative to it."""
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
    """The directories of LoRA adapters by the names that requests use; none if the engine does not enable them."""
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
    """The arguments as vLLM's ``AsyncEngineArgs``."""
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


_BACKEND = "vllm"

_PARAMETERS = {
    "REPORT_CUSTOM_METRICS": boolean(),
    "CHAT_TEMPLATE": text(),
    "ENABLE_VLLM_HEALTH_CHECK": Ignored("the engine is always watched, and started again when it dies"),
}


class TritonPythonModel:
    """A language model in an engine of vLLM."""

    @staticmethod
    def auto_complete_config(config: ModelConfig) -> ModelConfig:
        """Fill in the inputs and outputs. vLLM is not imported."""
        document = config.as_dict()
        read_engine_arguments(document)
        config.set_model_transaction_policy({"decoupled": True})
        return complete_config(config, TEXT_SIGNATURE, ENGINE_FILE)

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        check_config(config, TEXT_SIGNATURE, ENGINE_FILE)
        require_decoupled(config)
        parameters = read_parameters(config, _PARAMETERS)
        arguments = read_engine_arguments(config)
        adapters = read_adapters(config, arguments)
        vllm = require("vllm", backend=_BACKEND, extra=_BACKEND)
        made = make_engine_arguments(config, arguments, vllm.AsyncEngineArgs)
        loggers = [stat_logger_factory(config["name"], args["model_version"])]
        wants_metrics = parameters.get("REPORT_CUSTOM_METRICS", False)
        template = read_template(config, parameters.get("CHAT_TEMPLATE"))
        self._engine = Engine(
            lambda: _start(config, made, loggers if wants_metrics else None),
            config["name"],
        )
        self._reader = GenerationReader(
            adapters if arguments.get("enable_lora") else None, self._engine.tokenizer, template
        )

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                generation = self._reader.read(request)
            except RequestError as error:
                refuse(sender, str(error))
            else:
                self._engine.submit(generation, sender)

    def finalize(self) -> None:
        self._engine.end()


def _start(config: Dict[str, Any], arguments: Any, loggers: Any) -> Any:
    engine_class = import_module("vllm.v1.engine.async_llm").AsyncLLM
    try:
        return engine_class.from_engine_args(arguments, stat_loggers=loggers)
    except Exception as error:  # noqa: BLE001  vLLM raises any type, and logs the reason
        raise TritonModelException(
            f"model '{config['name']}': vLLM {import_module('vllm').__version__} cannot start the engine of {ENGINE_FILE}: "
            f"{type(error).__name__}: {error}"
        ) from None
