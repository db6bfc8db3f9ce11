"""Small ONNX files, made for a test."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 9
"""Old enough for every onnxruntime that the tests may meet."""

Tensor = tuple[str, int, Sequence[int | str]]
"""Name, element type, and shape: a text is a dimension of any size."""


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    initial: Sequence[onnx.TensorProto] = (),
    opset: int = OPSET,
    external: bool = False,
) -> Path:
    """Write a graph into a file, whose directory is made; with ``external`` its weights lie in another file beside it."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        list(initial),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def initial(name: str, array: np.ndarray) -> onnx.TensorProto:
    """An array as an initial value."""
    return numpy_helper.from_array(array, name)


def dense(path: Path, random: np.random.Generator, widths: Sequence[int]) -> Path:
    """A network of dense layers, from ``x`` of the first width to ``y`` of the last, in FP32."""
    nodes, initials, name = [], [], "x"
    for number, (before, after) in enumerate(pairwise(widths)):
        weights = (random.standard_normal((before, after)) / before**0.5).astype(np.float32)
        initials.append(initial(f"w{number}", weights))
        nodes.append(helper.make_node("MatMul", [name, f"w{number}"], [f"m{number}"]))
        name = "y" if number == len(widths) - 2 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"m{number}"], [name]))
    rows = [("x", TensorProto.FLOAT, ["rows", widths[0]])], [("y", TensorProto.FLOAT, ["rows", widths[-1]])]
    return save(path, nodes, *rows, initial=initials)


def addition(path: Path, element: int = TensorProto.FLOAT, rows: int | str = "rows") -> Path:
    """``sum = a + b``, of shape [rows, 3]."""
    shape = [rows, 3]
    return save(
        path,
        [helper.make_node("Add", ["a", "b"], ["sum"])],
        [("a", element, shape), ("b", element, shape)],
        [("sum", element, shape)],
    )
