"""Small models of OpenVINO, made for a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as ops

Shape = Sequence[int]


def parameter(name: str, shape: Shape, element: openvino.Type = openvino.Type.f32) -> openvino.Node:
    """An input; -1 is a dimension of any size."""
    node = ops.parameter(openvino.PartialShape(list(shape)), element, name=name)
    node.output(0).set_names({name})
    return node


def save(path: Path, inputs: Sequence[openvino.Node], outputs: dict[str, openvino.Node]) -> Path:
    """Write a model and its weights into files, whose directory is made."""
    for name, node in outputs.items():
        node.output(0).add_names({name})
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [ops.result(node) for node in outputs.values()]
    openvino.save_model(openvino.Model(results, list(inputs), "model"), path, compress_to_fp16=False)
    return path


def dense(path: Path, random: np.random.Generator, rows: int = -1) -> Path:
    """``y = relu(x @ w)``, from 16 to 4 values a row."""
    x = parameter("x", [rows, 16])
    weights = ops.constant(random.standard_normal((16, 4)).astype(np.float32))
    return save(path, [x], {"y": ops.relu(ops.matmul(x, weights, False, False))})


def addition(path: Path, element: openvino.Type = openvino.Type.f32, rows: int = -1) -> Path:
    """``sum = a + b``, of shape [rows, 3]."""
    a, b = parameter("a", [rows, 3], element), parameter("b", [rows, 3], element)
    return save(path, [a, b], {"sum": ops.add(a, b)})


def numbers(path: Path, types: Sequence[str]) -> Path:
    """For each type of NumPy an input of its name with 2 by 3 numbers, which comes out with the shape [6]; and a
    scalar."""
    inputs = {name: parameter(name, [2, 3], openvino.Type(np.dtype(name))) for name in types}
    outputs = {f"{name}_out": ops.reshape(node, np.array([6]), False) for name, node in inputs.items()}
    most = ops.reduce_max(inputs["float32"], np.array([0, 1]), False)
    return save(path, list(inputs.values()), {**outputs, "most": most})


def zeros(path: Path) -> Path:
    """``y``, the sum of the cosines of ``n`` zeros."""
    n = parameter("n", [1], openvino.Type.i64)
    many = ops.cos(ops.broadcast(ops.constant(np.float32(0)), n))
    return save(path, [n], {"y": ops.reduce_sum(many, np.array([0]), True)})


def image(path: Path, random: np.random.Generator) -> Path:
    """A convolution over images, in a batch of 2: ``y``, and ``flat``, the sum of each image, of shape [2]."""
    x = parameter("x", [2, 3, 8, 8])
    weights = ops.constant(random.standard_normal((5, 3, 3, 3)).astype(np.float32))
    y = ops.convolution(x, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    return save(path, [x], {"y": y, "flat": ops.reduce_sum(y, np.array([1, 2, 3]), False)})
