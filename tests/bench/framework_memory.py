"""Models without code: what one more instance of a model takes, with few weights and with many.

Where a framework maps its file, the weights are shared by all instances. Frameworks that are not installed are left
out.
"""

import importlib.util
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.bench import procstat, progress, servers
from tests.bench.plan import MB

WIDTHS = (64, 4096)
"""Of square layers, with few weights and with many: 16 KB and 64 MB."""
_INSTANCES = 2
_REQUESTS = 40
"""To each model, so that both instances have answered some."""
_DATATYPES = {"f": "FP32", "U": "BYTES"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class InstanceMemory:
    """One model.

    Attributes:
        kind: how tables call the framework and the kind of its file.
        file_bytes: size of the model's files.
        private_bytes: memory that only one of its instances has, the middle one: what one more of them takes.
    """

    kind: str
    file_bytes: int
    private_bytes: int


def measure(launchers: Sequence[servers.Launcher], scratch: Path) -> list[InstanceMemory]:
    """Serve all models with two instances each, use them, and read /proc."""
    repository = scratch / "models"
    models = {}
    for number, (kind, (packages, write)) in enumerate(_KINDS.items()):
        if all(importlib.util.find_spec(package) is not None for package in packages):
            for width in WIDTHS:
                name = f"m{number}x{width}"
                (repository / name / "1").mkdir(parents=True)
                (repository / name / "config.pbtxt").write_text(f"instance_group [ {{ count: {_INSTANCES} }} ]\n")
                models[name] = (kind, write(repository / name / "1", width))
    samples = []
    with launchers[0].start(repository) as server:
        for name, (kind, inputs) in models.items():
            with ThreadPoolExecutor(_INSTANCES) as clients:
                list(clients.map(_infer, [server.port] * _REQUESTS, [name] * _REQUESTS, [inputs] * _REQUESTS))
            private = [
                procstat.private_bytes(pid) for pid in server.tree().stubs if procstat.name(pid).startswith(f"{name}_")
            ]
            size = sum(file.stat().st_size for file in (repository / name / "1").rglob("*") if file.is_file())
            samples.append(InstanceMemory(kind, size, int(median(private))))
            progress.show(
                f"{kind}, {size / MB:,.0f} MB: {samples[-1].private_bytes / MB:,.1f} MB for each instance alone"
            )
    return samples


def _infer(port: int, model: str, inputs: Mapping[str, Array]) -> None:
    tensors = [
        {"name": name, "shape": array.shape, "datatype": _DATATYPES[array.dtype.kind], "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    body = json.dumps({"inputs": tensors}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{model}/infer", body, timeout=60) as reply:
        reply.read()


def render(samples: Sequence[InstanceMemory]) -> str:
    """A table with a line for each kind, as Markdown."""
    lines = [
        "| kind | file, MB | an instance alone, MB | the same with few weights, MB | weights that are not shared |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in dict.fromkeys(sample.kind for sample in samples):
        small, large = sorted((each for each in samples if each.kind == kind), key=lambda each: each.file_bytes)
        added = (large.private_bytes - small.private_bytes) / (large.file_bytes - small.file_bytes)
        figures = [each / MB for each in (large.file_bytes, large.private_bytes, small.private_bytes)]
        lines.append(" | ".join([f"| {kind}", *(f"{each:,.0f}" for each in figures), f"{added:.0%} |"]))
    return "\n".join(lines)


Inputs = dict[str, Array]


def _row(width: int) -> Array:
    return np.ones((1, width), np.float32)


def _weights(width: int) -> Array:
    return np.random.default_rng(0).standard_normal((width, width)).astype(np.float32) / np.float32(width)


def _onnx(version: Path, width: int) -> Inputs:
    from tests.backends.onnxruntime import graphs

    graphs.dense(version / "model.onnx", np.random.default_rng(0), [width, width])
    return {"x": _row(width)}


def _openvino(version: Path, width: int) -> Inputs:
    from openvino import opset13 as ops

    from tests.backends.openvino import networks

    x = networks.parameter("x", [-1, width])
    networks.save(version / "model.xml", [x], {"y": ops.matmul(x, ops.constant(_weights(width)), False, False)})
    return {"x": _row(width)}


def _litert(version: Path, width: int) -> Inputs:
    from tests.backends.litert import files

    tensors = [files.Tensor(name, [-1, width]) for name in ("x", "y")]
    tensors += [files.Tensor("w", values=_weights(width)), files.Tensor("b", values=np.zeros(width, np.float32))]
    options = (files.schema.BuiltinOptions.FullyConnectedOptions, files.schema.FullyConnectedOptionsT())
    node = files.Node(files.Op.FULLY_CONNECTED, ["x", "w", "b"], ["y"], options)
    files.save(version / "model.tflite", tensors, [node], ["x"], ["y"])
    return {"x": _row(width)}


def _torchscript(version: Path, width: int) -> Inputs:
    import torch

    torch.jit.trace(torch.nn.Linear(width, width).eval(), torch.ones(1, width)).save(version / "model.pt")
    return {"input": _row(width)}


def _exported(version: Path, width: int) -> Inputs:
    import torch

    program = torch.export.export(torch.nn.Linear(width, width).eval(), (torch.ones(1, width),))
    torch.export.save(program, version / "model.pt2")
    return {"input": _row(width)}


def _tensorflow(version: Path, width: int) -> Inputs:
    import tensorflow as tf

    module = tf.Module()
    module.weights = tf.Variable(_weights(width))
    serve = tf.function(
        lambda x: {"y": x @ module.weights}, input_signature=[tf.TensorSpec([None, width], tf.float32, name="x")]
    )
    module.serve = serve
    tf.saved_model.save(module, str(version / "model.savedmodel"), signatures=serve)
    return {"x": _row(width)}


def _transformers(version: Path, width: int) -> Inputs:
    import torch
    import transformers

    from tests.backends.transformers.tiny_models import WORDS, make_tokenizer

    torch.manual_seed(0)
    sizes = {"hidden_size": width // 4, "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(version)
    make_tokenizer().save_pretrained(version)
    return {"text": np.array([["hello world"]])}


def _forest(version: Path, width: int) -> Inputs:
    import xgboost

    random = np.random.default_rng(0)
    rows = random.random((20_000, 16), np.float32)
    options = {"max_depth": 9, "nthread": 2, "tree_method": "hist"}
    trees = xgboost.train(options, xgboost.DMatrix(rows, random.random(len(rows))), width // 16)
    trees.save_model(version / "xgboost.ubj")
    return {"input__0": rows[:1]}


_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path, int], Inputs]]] = {
    "onnxruntime": (("onnx", "onnxruntime"), _onnx),
    "openvino": (("openvino",), _openvino),
    "litert": (("ai_edge_litert",), _litert),
    "pytorch: TorchScript": (("torch",), _torchscript),
    "pytorch: torch.export": (("torch",), _exported),
    "tensorflow": (("tensorflow",), _tensorflow),
    "transformers": (("torch", "transformers"), _transformers),
    "fil: XGBoost": (("xgboost",), _forest),
}
"""The packages that each kind needs, and the function that writes a model into a version directory."""
