"""Small files of LiteRT, made for a test."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

Type = schema.TensorType
Op = schema.BuiltinOperator


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph: with ``values`` a constant; a first dimension of -1 is of any size."""

    name: str
    shape: Sequence[int] = ()
    element: int = Type.FLOAT32
    values: np.ndarray | None = None
    scale: float = 0.0
    zero_point: int = 0


@dataclass(frozen=True)
class Node:
    """An operation on tensors, by their names; ``version`` is that of the operation's definition."""

    op: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    options: tuple[int, object] | None = None
    version: int = 1


def save(
    path: Path,
    tensors: Sequence[Tensor],
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    signatures: Sequence[str] = (),
) -> Path:
    """Write a graph into a file, whose directory is made. Each of ``signatures`` has the names in capital letters."""
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    places = {tensor.name: place for place, tensor in enumerate(tensors)}
    graph.tensors = [_tensor(tensor, model.buffers) for tensor in tensors]
    graph.inputs, graph.outputs = [places[name] for name in inputs], [places[name] for name in outputs]
    model.operatorCodes, graph.operators = [], []
    for node in nodes:
        code, operator = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode, code.version = node.op, node.version
        code.deprecatedBuiltinCode = min(node.op, 127)
        code.customCode = "Frobnicate" if node.op == Op.CUSTOM else None
        operator.opcodeIndex = len(model.operatorCodes)
        operator.inputs, operator.outputs = (
            [places[name] for name in node.inputs],
            [places[name] for name in node.outputs],
        )
        if node.options:
            operator.builtinOptionsType, operator.builtinOptions = node.options
        model.operatorCodes.append(code)
        graph.operators.append(operator)
    model.subgraphs = [graph]
    model.signatureDefs = [_signature(key, inputs, outputs, places) for key in signatures]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(builder.Output()))
    return path


def _tensor(tensor: Tensor, buffers: list) -> schema.TensorT:
    made = schema.TensorT()
    made.name, made.type = tensor.name.encode(), tensor.element
    shape = tensor.values.shape if tensor.values is not None else tensor.shape
    made.shape = [max(1, size) for size in shape]
    if -1 in shape:
        made.shapeSignature = list(shape)
    buffer = schema.BufferT()
    if tensor.values is not None:
        buffer.data = np.frombuffer(np.ascontiguousarray(tensor.values).tobytes(), np.uint8)
    made.buffer = len(buffers)
    buffers.append(buffer)
    if tensor.scale:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale, made.quantization.zeroPoint = [tensor.scale], [tensor.zero_point]
    return made


def _signature(key: str, inputs: Sequence[str], outputs: Sequence[str], places: dict[str, int]) -> schema.SignatureDefT:
    made = schema.SignatureDefT()
    made.signatureKey, made.subgraphIndex = key, 0
    made.inputs, made.outputs = ([_map(name, places[name]) for name in names] for names in (inputs, outputs))
    return made


def _map(name: str, place: int) -> schema.TensorMapT:
    made = schema.TensorMapT()
    made.name, made.tensorIndex = name.upper(), place
    return made


def addition(path: Path, element: int = Type.FLOAT32, rows: int = -1, op: int = Op.ADD, **node: int) -> Path:
    """``sum = a + b``, of shape [rows, 3]."""
    tensors = [Tensor(name, [rows, 3], element) for name in ("a", "b", "sum")]
    options = (schema.BuiltinOptions.AddOptions, schema.AddOptionsT()) if op == Op.ADD else None
    return save(path, tensors, [Node(op, ["a", "b"], ["sum"], options, **node)], ["a", "b"], ["sum"])


def dense(
    path: Path, random: np.random.Generator, rows: int = 1, signatures: Sequence[str] = ("serving_default",)
) -> Path:
    """``Y = relu(X @ w)``, from 16 to 4 values a row; with a fixed batch of 1."""
    options = schema.FullyConnectedOptionsT()
    options.fusedActivationFunction = schema.ActivationFunctionType.RELU
    weights = random.standard_normal((4, 16)).astype(np.float32)
    tensors = [
        Tensor("x", [rows, 16]),
        Tensor("w", values=weights),
        Tensor("bias", values=np.zeros(4, np.float32)),
        Tensor("y", [rows, 4]),
    ]
    node = Node(Op.FULLY_CONNECTED, ["x", "w", "bias"], ["y"], (schema.BuiltinOptions.FullyConnectedOptions, options))
    return save(path, tensors, [node], ["x"], ["y"], signatures)


def quantised(path: Path) -> Path:
    """``q`` of INT8 with a scale of 0.5, its values plus themselves as ``sum``, with a scale of 1 and 3 for zero."""
    tensors = [Tensor("q", [-1, 2], Type.INT8, scale=0.5), Tensor("sum", [-1, 2], Type.INT8, scale=1.0, zero_point=3)]
    node = Node(Op.ADD, ["q", "q"], ["sum"], (schema.BuiltinOptions.AddOptions, schema.AddOptionsT()), version=2)
    return save(path, tensors, [node], ["q"], ["sum"])


def reshaped(path: Path) -> Path:
    """A reshape of one row of 4 values to 2 by 2: the file allows no other batch."""
    options = schema.ReshapeOptionsT()
    options.newShape = [1, 2, 2]
    target = Tensor("shape", element=Type.INT32, values=np.array([1, 2, 2], np.int32))
    node = Node(Op.RESHAPE, ["x", "shape"], ["y"], (schema.BuiltinOptions.ReshapeOptions, options))
    return save(path, [Tensor("x", [1, 4]), target, Tensor("y", [1, 2, 2])], [node], ["x"], ["y"])


def texts(path: Path) -> Path:
    """Two strings a row, of any number of rows, as ``t`` with one more dimension."""
    target = Tensor("shape", element=Type.INT32, values=np.array([-1, 2, 1], np.int32))
    tensors = [Tensor("s", [-1, 2], Type.STRING), target, Tensor("t", [-1, 2, 1], Type.STRING)]
    return save(path, tensors, [Node(Op.RESHAPE, ["s", "shape"], ["t"])], ["s"], ["t"])


def numbers(path: Path, types: Sequence[str]) -> Path:
    """For each type of NumPy an input of its name with 2 by 3 numbers, which comes out with the shape [6]; and a
    scalar."""
    tensors = [Tensor("shape", element=Type.INT32, values=np.array([6], np.int32)), Tensor("most")]
    tensors += [Tensor("axes", element=Type.INT32, values=np.array([0, 1], np.int32))]
    for name in types:
        tensors += [
            Tensor(name, [2, 3], getattr(Type, name.upper())),
            Tensor(f"{name}_out", [6], getattr(Type, name.upper())),
        ]
    nodes = [Node(Op.RESHAPE, [name, "shape"], [f"{name}_out"]) for name in types]
    reduction = (schema.BuiltinOptions.ReducerOptions, schema.ReducerOptionsT())
    nodes.append(Node(Op.REDUCE_MAX, ["float32", "axes"], ["most"], reduction))
    return save(path, tensors, nodes, types, [*(f"{name}_out" for name in types), "most"])


def zeros(path: Path) -> Path:
    """``y``, the sum of ``n`` zeros."""
    tensors = [
        Tensor("n", [1], Type.INT32), Tensor("zero", values=np.array(0, np.float32)), Tensor("many", [-1]),
        Tensor("axis", element=Type.INT32, values=np.array([0], np.int32)), Tensor("y"),
    ]  # fmt: skip
    fill = Node(Op.FILL, ["n", "zero"], ["many"], (schema.BuiltinOptions.FillOptions, schema.FillOptionsT()))
    total = Node(Op.SUM, ["many", "axis"], ["y"], (schema.BuiltinOptions.ReducerOptions, schema.ReducerOptionsT()))
    return save(path, tensors, [fill, total], ["n"], ["y"])


def square(path: Path, side: int) -> Path:
    """``y = x + x``, of shape [rows, side, side]."""
    tensors = [Tensor(name, [-1, side, side]) for name in ("x", "y")]
    node = Node(Op.ADD, ["x", "x"], ["y"], (schema.BuiltinOptions.AddOptions, schema.AddOptionsT()))
    return save(path, tensors, [node], ["x"], ["y"])
