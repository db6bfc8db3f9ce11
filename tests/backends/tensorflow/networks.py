"""A small SavedModel, made for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inference import NUMBERS


class Network(tf.Module):
    """``y = relu(x @ w)``, and other functions as signatures."""

    def __init__(self) -> None:
        self.w = tf.Variable(np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.float32, name="x")])
    def dense(self, x):
        return {"y": tf.nn.relu(x @ self.w), "most": tf.reduce_max(x, axis=1)}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.string, name="s")])
    def upper(self, s):
        return {"t": tf.strings.upper(s)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.int64, name="by"),
            tf.TensorSpec([2], tf.int64, name="n"),
        ]
    )
    def times(self, by, n):
        return {"product": by * n, "sum": tf.reduce_sum(by * n, keepdims=True)}

    @tf.function(input_signature=[tf.TensorSpec([1], tf.int64, name="n")])
    def zeros(self, n):
        return {"y": tf.reduce_sum(tf.cos(tf.fill(n, 0.0)), keepdims=True)}

    @tf.function(input_signature=[tf.TensorSpec([2, 3], getattr(tf, name), name=name) for name in NUMBERS])
    def everything(self, *numbers):
        outputs = {f"{number.dtype.name}_out": tf.reshape(number, [6]) for number in numbers}
        return {**outputs, "most": tf.reduce_max(numbers[NUMBERS.index("float32")])}

    @property
    def signatures(self):
        return {
            "serving_default": self.dense, "upper": self.upper, "times": self.times, "zeros": self.zeros,
            "everything": self.everything,
        }  # fmt: skip


def save(path: Path) -> Path:
    """Write :class:`Network` into a directory, which is made."""
    network = Network()
    tf.saved_model.save(network, str(path), signatures=network.signatures)
    return path


def direct(path: Path, signature: str, **inputs: Any) -> dict[str, Any]:
    """The library's own answer, as arrays by name."""
    function = tf.saved_model.load(str(path)).signatures[signature]
    given = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in function(**given).items()}


class Identity(tf.Module):
    """Text, as it comes."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string, name="INPUT0")])
    def __call__(self, text):
        return {"OUTPUT0": tf.identity(text)}


def save_identity(path: Path) -> Path:
    """Write :class:`Identity` into a directory, which is made."""
    network = Identity()
    tf.saved_model.save(network, str(path), signatures=network.__call__)
    return path
