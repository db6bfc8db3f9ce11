"""Sample requests: random, but the same each time, and valid against a model's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pybackend_wire.dtypes import BY_CONFIG_NAME, DATATYPES

Request = dict[str, Any]
"""A request of the v2 protocol in JSON."""

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_DECIMALS = 4
_IMAGE_SIDE = 8
_SAMPLING, _LIKELIEST = "sampling_parameters", json.dumps({"temperature": 0, "max_tokens": 8})
"""An input of models that generate text, and a value for which the answer is the same each time."""


class Sizes(NamedTuple):
    """Choices that a configuration leaves open.

    Attributes:
        dimension: the size of each dimension of any size.
        most: the largest whole number.
    """

    dimension: int
    most: int


LADDER = (Sizes(4, 9), Sizes(1, 1), Sizes(8, 1), Sizes(32, 1), Sizes(224, 1))
"""Sizes to try one after the other: a configuration does not state the sizes of a vocabulary or of the smallest image."""


def sample_request(
    config: Mapping[str, Any], sizes: Sizes, *, seed: int = 0, examples: Mapping[str, Any] | None = None
) -> Request:
    """A request with a batch of one for a model.

    ``seed``: another one gives other values. ``examples``: a row of values by column, which wins over random values
    where it fits the inputs.
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
            data = [_image(random)] * int(np.prod(shape, dtype=int))
        else:
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
