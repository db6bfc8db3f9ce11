"""Talks to a server that has only the imported model: loads it, reads its configuration, and sends sample requests."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pybackend.errors import InferenceError, ServerError
from pybackend.spelling import cut_between_words
from pybackend_client.connection import Connection, control_path, model_path
from pybackend_client.values import check_random
from pybackend_wire.dtypes import BY_CONFIG_NAME, DATATYPES

Request = dict[str, Any]
"""A request of the v2 protocol in JSON."""

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_DECIMALS = 4
_IMAGE_SIDE = 8
_SAMPLING, _LIKELIEST = "sampling_parameters", json.dumps({"temperature": 0, "max_tokens": 8})
"""An input of models that generate text, and a value for which the answer is the same each time."""


class Sizes(NamedTuple):
    """Choices that a configuration leaves open."""

    dimension: int  # the size of each dimension of any size
    most: int  # the largest whole number


LADDER = (Sizes(4, 9), Sizes(1, 1), Sizes(8, 1), Sizes(32, 1), Sizes(224, 1))
"""Sizes to try one after the other: a configuration does not state the sizes of a vocabulary or of the smallest image.
"""


def sample_request(
    config: Mapping[str, Any], sizes: Sizes, *, seed: int = 0, examples: Mapping[str, Any] | None = None
) -> Request:
    """A request with a batch of one for a model.

    ``seed``: another one gives other values. ``examples``: a row of values by column, which wins over random values
    where it fits the inputs. Raises ServerError if the model wants too many values.
    """
    random = np.random.default_rng(seed)
    known = _examples_of(config, examples or {})
    inputs = []
    for each in config["input"]:
        if each.get("optional") and each["name"] != _SAMPLING:
            continue
        datatype = BY_CONFIG_NAME[each["data_type"]].name
        dims = [sizes.dimension if size < 0 else size for size in each["dims"]]
        shape = [1, *dims] if config["max_batch_size"] > 0 else dims
        if each["name"] == _SAMPLING:
            data = [_LIKELIEST]
        elif each["name"] in known:
            data = known[each["name"]]
        elif each["name"] == "image" and datatype == "BYTES":
            check_random(each["name"], shape)
            data = [_image(random)] * int(np.prod(shape, dtype=int))
        else:
            check_random(each["name"], shape)
            data = _values(datatype, shape, sizes, random)
        inputs.append({"name": each["name"], "datatype": datatype, "shape": shape, "data": data})
    return {"inputs": inputs}


def _examples_of(config: Mapping[str, Any], examples: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The flat values of inputs that an example row gives: one for each column, or all of them for the only input."""
    inputs = [each for each in config["input"] if not each.get("optional")]
    if all(each["name"] in examples and each["dims"] == [1] for each in inputs):
        return {each["name"]: [examples[each["name"]]] for each in inputs}
    if len(inputs) == 1 and inputs[0]["dims"] == [len(examples)]:
        return {inputs[0]["name"]: list(examples.values())}
    return {}


def arrays_of(tensors: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The arrays of the inputs of a request, or of the outputs of an answer; BYTES as text, BF16 as FP32."""
    arrays = {}
    for tensor in tensors:
        dtype = np.dtype(object) if tensor["datatype"] == "BYTES" else DATATYPES[tensor["datatype"]].numpy
        arrays[tensor["name"]] = np.array(tensor["data"], dtype or np.float32).reshape(tensor["shape"])
    return arrays


def _values(datatype: str, shape: Sequence[int], sizes: Sizes, random: np.random.Generator) -> list[Any]:
    count = int(np.prod(shape, dtype=int))
    if datatype == "BYTES":
        return [str(word) for word in random.choice(_WORDS, count)]
    if datatype == "BOOL":
        return [bool(value) for value in random.integers(0, 2, count)]
    if "INT" in datatype:
        # From 1: zeros would mask everything where numbers are masks.
        return [int(value) for value in random.integers(1, sizes.most + 1, count)]
    return [round(float(value), _DECIMALS) for value in random.random(count)]


def _image(random: np.random.Generator) -> str:
    """A picture in the text form of PPM: requests in JSON hold text only."""
    pixels = random.integers(0, 256, _IMAGE_SIDE * _IMAGE_SIDE * 3)
    return f"P3 {_IMAGE_SIDE} {_IMAGE_SIDE} 255 {' '.join(map(str, pixels))}\n"


Answer = dict[str, Any]
"""A response of the v2 protocol in JSON."""

_ROWS = 8
_MOST_ANSWER_BYTES = 256 * 1024 * 1024
"""Of an answer in JSON, whose numbers take ten times as much memory once they are read."""

_RAISED, _TRACEBACK = ", message: ", "\n\nAt:\n"
_DELIBERATE = "TritonModelException: "  # its message is a sentence for users
_MOST_CHARACTERS = 500
_AROUND = re.compile(
    r"^(?:load failed for model '.*?': )?(?:version \d+ is at UNAVAILABLE state: )?(?:[A-Z][A-Za-z ]*: )?"
)


class Trial:
    """A model on a server."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection.reading_at_most(_MOST_ANSWER_BYTES)
        self._name = name
        self._streams = False
        self._outputs: Sequence[Mapping[str, Any]] = ()

    def load(self) -> float:
        """Load the model; returns how long that took, in seconds.

        Raises InferenceError if it cannot be loaded; the message is the model's.
        """
        began_s = time.perf_counter()
        try:
            self._connection.post_json(f"{control_path(self._name)}/load", {})
        except InferenceError as error:
            raise InferenceError(_reason(error.message)) from None
        return time.perf_counter() - began_s

    def unload(self) -> None:
        """Unload the model. Raises InferenceError if it cannot be unloaded."""
        self._connection.post_json(f"{control_path(self._name)}/unload", {})

    def configuration(self) -> dict[str, Any]:
        """The complete configuration, as the server has it. Requests come after it."""
        document: dict[str, Any] = self._connection.get(f"{model_path(self._name, '')}/config")
        self._streams = bool(document.get("model_transaction_policy", {}).get("decoupled"))
        self._outputs = document["output"]
        return document

    def answer(self, request: Request) -> Answer:
        """The model's answer. Raises InferenceError if the model refuses the request."""
        path, document = self.call(request)
        answer: Answer = self._connection.post_json(path, document)
        if "outputs" in answer:
            shown = "name", "datatype", "shape", "data"
            return {"outputs": [{name: output[name] for name in shown} for output in answer["outputs"]]}
        return {"outputs": [_tensor(each, answer[each["name"]]) for each in self._outputs if each["name"] in answer]}

    def call(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The path and the JSON document of a call with a request: infer, or generate for a model that may send several responses."""
        if not self._streams:
            return f"{model_path(self._name, '')}/infer", request
        values = {
            each["name"]: each["data"] if len(each["data"]) > 1 else each["data"][0] for each in request["inputs"]
        }
        return f"{model_path(self._name, '')}/generate", values

    def sample(self, config: Mapping[str, Any], examples: Mapping[str, Any]) -> tuple[Request, Sizes]:
        """The first sample request that the model answers, and its sizes.

        Raises ServerError if it answers none; the text has its reason.
        """
        reasons = []
        for sizes in LADDER:
            try:
                request = sample_request(config, sizes, examples=examples)
            except ServerError as error:
                reasons.append(str(error))
                continue
            try:
                self.answer(request)
            except InferenceError as error:
                reasons.append(error.message)
            else:
                return request, sizes
        raise ServerError(
            f"the model was loaded, but it refuses random requests ({cause_of(reasons[0])}): --sample=FILE gives one that it answers, "
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


def _reason(message: str) -> str:
    """The cause in the message of a failed load, in one line and without the server's words around it."""
    return " ".join(_AROUND.sub("", message).split()).rstrip(";")


def cause_of(message: str) -> str:
    """The cause in the message of a failed request, in one line: without the server's words before it, and without the traceback."""
    raised = message.partition(_TRACEBACK)[0]
    text = " ".join((raised.partition(_RAISED)[2] or raised).split()).removeprefix(_DELIBERATE)
    return cut_between_words(text, _MOST_CHARACTERS)
