"""Talks to a server that has only the imported model: loads it, reads its configuration, and sends sample requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pybackend.errors import InferenceError, ServerError
from pybackend.tools.client.connection import Connection, model_path
from pybackend.tools.importing.sample import LADDER, Request, Sizes, sample_request
from pybackend_wire.dtypes import BY_CONFIG_NAME

Answer = dict[str, Any]
"""A response of the v2 protocol in JSON."""

_JSON = {"Content-Type": "application/json"}
_ROWS = 8
_AROUND = re.compile(
    r"^(?:load failed for model '.*?': )?(?:version \d+ is at UNAVAILABLE state: )?(?:[A-Z][A-Za-z ]*: )?"
)


class Trial:
    """A model on a server."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._streams = False
        self._outputs: Sequence[Mapping[str, Any]] = ()

    def load(self) -> float:
        """Load the model; returns how long that took, in seconds.

        Raises InferenceError if it cannot be loaded; the message is the model's.
        """
        began_s = time.perf_counter()
        try:
            self._connection.post(f"/v2/repository/models/{quote(self._name, safe='')}/load", b"{}", _JSON)
        except InferenceError as error:
            raise InferenceError(_reason(error.message)) from None
        return time.perf_counter() - began_s

    def unload(self) -> None:
        """Unload the model. Raises InferenceError if it cannot be unloaded."""
        self._connection.post(f"/v2/repository/models/{quote(self._name, safe='')}/unload", b"{}", _JSON)

    def configuration(self) -> dict[str, Any]:
        """The complete configuration, as the server has it. Requests come after it."""
        document: dict[str, Any] = self._connection.get(f"{model_path(self._name, '')}/config")
        self._streams = bool(document.get("model_transaction_policy", {}).get("decoupled"))
        self._outputs = document["output"]
        return document

    def answer(self, request: Request) -> Answer:
        """The model's answer. Raises InferenceError if the model refuses the request."""
        path, body = self.call(request)
        answer: Answer = json.loads(self._connection.post(path, body, _JSON).body)
        if "outputs" in answer:
            return {"outputs": [_without_parameters(output) for output in answer["outputs"]]}
        return {"outputs": [_tensor(each, answer[each["name"]]) for each in self._outputs if each["name"] in answer]}

    def call(self, request: Request) -> tuple[str, bytes]:
        """The path and the body of a call with a request: infer, or generate for a model that may send several responses."""
        if not self._streams:
            return f"{model_path(self._name, '')}/infer", json.dumps(request).encode()
        values = {
            each["name"]: each["data"] if len(each["data"]) > 1 else each["data"][0] for each in request["inputs"]
        }
        return f"{model_path(self._name, '')}/generate", json.dumps(values).encode()

    def sample(self, config: Mapping[str, Any], examples: Mapping[str, Any]) -> tuple[Request, Sizes]:
        """The first sample request that the model answers, and its sizes.

        Raises ServerError if it answers none; the text has its reason.
        """
        reasons = []
        for sizes in LADDER:
            request = sample_request(config, sizes, examples=examples)
            try:
                self.answer(request)
            except InferenceError as error:
                reasons.append(error.message)
            else:
                return request, sizes
        raise ServerError(
            f"the model was loaded, but it refuses random requests ({_last_line(reasons[0])}): --sample=FILE gives one that it answers, "
            "in JSON as the v2 protocol has it"
        )

    def further(self, config: Mapping[str, Any], sizes: Sizes) -> list[Request]:
        """More sample requests with random values, which the model may refuse."""
        return [sample_request(config, sizes, seed=seed) for seed in range(1, _ROWS)]


def answers_to(trial: Trial, requests: Sequence[Request]) -> list[tuple[Request, Answer]]:
    """The requests that a model answers, and its answers."""
    answered = []
    for request in requests:
        try:
            answered.append((request, trial.answer(request)))
        except InferenceError:
            continue  # random values may be outside of what a model knows
    return answered


def _tensor(output: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """An output of the generate route, which sends values without their shapes."""
    data = value if isinstance(value, list) else [value]
    datatype = BY_CONFIG_NAME[output["data_type"]].name
    return {"name": output["name"], "datatype": datatype, "shape": [len(data)], "data": data}


def _without_parameters(output: Mapping[str, Any]) -> dict[str, Any]:
    return {name: output[name] for name in ("name", "datatype", "shape", "data")}


def _reason(message: str) -> str:
    """The cause in the message of a failed load, in one line and without the server's words around it."""
    return " ".join(_AROUND.sub("", message).split()).rstrip(";")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else text
