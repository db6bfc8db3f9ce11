"""The models without code that are measured: each on disk, for a server, and in this process, called without one."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import bodies, repositories

ADD_SUB = "add_sub, written in Python with numpy"
"""The yardstick of the small models."""
SMALL, LARGE = "onnxruntime: small network", "onnxruntime: convolutions"
BATCHED, IMAGES = "onnxruntime: dense layers, batches of 16", "onnxruntime: small images, batches of 16"
FOREST, PIPELINE, TORCH = (
    "fil: 10 trees of depth 3",
    "sklearn: scaler and logistic regression",
    "pytorch: small network",
)

_BATCH = 16
_FEATURES = 16
_SIDE = 32
"""Of images, in pixels."""
_THREADS = 1
"""Of the libraries, both alone and served: a client and the server need the other core."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FrameworkModel:
    """A model.

    Attributes:
        workload: a request of one row.
        inputs: of that request.
        connections: requests in flight.
        rows: of a call of the library alone.
        run: that call.
    """

    workload: bodies.Workload
    inputs: Mapping[str, Array]
    connections: int
    rows: int
    run: Callable[[], Any]


def write_models(repository: Path) -> list[FrameworkModel]:
    """Write a repository; returns its models.

    Raises:
        ModuleNotFoundError: a package that makes or runs the models is not installed. Without torch, there is no model
            of it.
    """
    random = np.random.default_rng(0)
    repositories.write_add_sub(repository, [repositories.ADD_SUB])
    left, right = bodies.add_sub_inputs().values()
    models = [
        FrameworkModel(
            replace(bodies.add_sub_binary(), name=ADD_SUB),
            bodies.add_sub_inputs(),
            8,
            1,
            lambda: (left + right, left - right),
        ),
        *_onnx_models(repository, random),
        write_forest(repository, random),
        write_pipeline(repository, random),
    ]
    if importlib.util.find_spec("torch") is not None:
        models.append(write_network(repository))
    return models


def write_forest(repository: Path, random: np.random.Generator) -> FrameworkModel:
    """A forest of XGBoost. Alone, it is called by the C interface that the backend uses too."""
    import xgboost

    from pybackend_backends.fil.xgboost_forest import XGBoostForest

    rows, labels = _training(random)
    options = {"objective": "binary:logistic", "max_depth": 3, "nthread": _THREADS}
    booster = xgboost.train(options, xgboost.DMatrix(rows, labels), 10)
    path = _place(repository, "forest", "xgboost.ubj", 'backend: "fil"\nmax_batch_size: 16\n')
    booster.save_model(path)
    forest = XGBoostForest(path.read_bytes(), _THREADS)
    row = rows[:1]
    inputs = {"input__0": row}
    workload = bodies.rows_of_model(FOREST, "forest", inputs, {"output__0": forest.predict(row)})
    return FrameworkModel(workload, inputs, 8, 1, lambda: forest.predict(row))


def write_pipeline(repository: Path, random: np.random.Generator) -> FrameworkModel:
    """A scaler and a logistic regression of scikit-learn."""
    import skops.io
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels = _training(random)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    config = (
        f'backend: "sklearn"\nmax_batch_size: 16\ninput {{ name: "input" data_type: TYPE_FP32 dims: [ {_FEATURES} ] }}\n'
        'output { name: "probabilities" data_type: TYPE_FP32 dims: [ 2 ] }\n'
    )
    skops.io.dump(pipeline, _place(repository, "pipeline", "model.skops", config))
    row = rows[:1]
    expected = pipeline.predict_proba(row).astype(np.float32)
    inputs = {"input": row}
    workload = bodies.rows_of_model(PIPELINE, "pipeline", inputs, {"probabilities": expected})
    return FrameworkModel(workload, inputs, 8, 1, lambda: pipeline.predict_proba(row))


def write_small_network(repository: Path, random: np.random.Generator) -> FrameworkModel:
    """Two dense layers in an ONNX file."""
    from tests.backends.onnxruntime import graphs

    path = graphs.dense(_place(repository, "small", "model.onnx", _onnx_config()), random, [_FEATURES, 32, 4])
    return _onnx_model(SMALL, "small", path, random.standard_normal((1, _FEATURES)).astype(np.float32), 8)


def _training(random: np.random.Generator) -> tuple[Array, Array]:
    rows = random.random((500, _FEATURES), np.float32)
    return rows, (rows[:, 0] + rows[:, 1] > 1).astype(int)


def _onnx_models(repository: Path, random: np.random.Generator) -> list[FrameworkModel]:
    from tests.backends.onnxruntime import graphs

    small = write_small_network(repository, random)
    batching = f"dynamic_batching {{ max_queue_delay_microseconds: 2000 }}\n{_onnx_config()}"
    batched = graphs.dense(_place(repository, "batched", "model.onnx", batching), random, [256, 1024, 1024, 16])
    large = _convolutions(repository, "convolutions", _onnx_config(), random, [64] * 11)
    images = _convolutions(repository, "images", batching, random, [3, 32, 32, 32, 32, 3])
    row = random.standard_normal((1, 256)).astype(np.float32)
    return [
        small,
        _onnx_model(LARGE, "convolutions", large, _image(random, 64), 2),
        _onnx_model(IMAGES, "images", images, _image(random, 3), 2 * _BATCH, rows=_BATCH),
        _onnx_model(BATCHED, "batched", batched, row, 2 * _BATCH, rows=_BATCH),
    ]


def _convolutions(
    repository: Path, name: str, config: str, random: np.random.Generator, channels: Sequence[int]
) -> Path:
    """A network of convolutions of 3 by 3 on images of :data:`_SIDE` by :data:`_SIDE`, with so many channels in front
    of and behind each."""
    from onnx import TensorProto, helper

    from tests.backends.onnxruntime import graphs

    nodes, weights, at = [], [], "x"
    for number, (before, behind) in enumerate(pairwise(channels)):
        weight = (random.standard_normal((behind, before, 3, 3)) * 0.02).astype(np.float32)
        weights.append(graphs.initial(f"w{number}", weight))
        nodes.append(helper.make_node("Conv", [at, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        at = f"r{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [at]))
    return graphs.save(
        _place(repository, name, "model.onnx", config),
        [*nodes, helper.make_node("Identity", [at], ["y"])],
        [("x", TensorProto.FLOAT, ["n", channels[0], _SIDE, _SIDE])],
        [("y", TensorProto.FLOAT, ["n", channels[-1], _SIDE, _SIDE])],
        initial=weights,
    )


def _image(random: np.random.Generator, channels: int) -> Array:
    return random.standard_normal((1, channels, _SIDE, _SIDE)).astype(np.float32)


def _onnx_config() -> str:
    threads = f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{_THREADS}" }} }}\n'
    return f"max_batch_size: {_BATCH}\n{threads}"


def _onnx_model(name: str, model: str, path: Path, row: Array, connections: int, rows: int = 1) -> FrameworkModel:
    """A model with the input ``x`` and the output ``y``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    session = onnxruntime.InferenceSession(path, options)
    inputs: Mapping[str, Array] = {"x": np.repeat(row, rows, axis=0)}
    expected = session.run(["y"], {"x": row})[0]
    workload = bodies.rows_of_model(name, model, {"x": row}, {"y": expected})
    return FrameworkModel(workload, {"x": row}, connections, rows, lambda: session.run(["y"], inputs))


def write_network(repository: Path) -> FrameworkModel:
    """Two dense layers in an archive of torch.export."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(_THREADS)
    network = torch.nn.Sequential(torch.nn.Linear(_FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    threads = f'parameters {{ key: "INTRA_OP_THREAD_COUNT" value: {{ string_value: "{_THREADS}" }} }}\n'
    path = _place(repository, "network", "model.pt2", threads)
    batch = torch.export.Dim("batch", min=1, max=_BATCH)
    program = torch.export.export(network, (torch.zeros(2, _FEATURES),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    called = program.module()
    row = torch.ones(1, _FEATURES)

    def run() -> Any:
        with torch.inference_mode():
            return called(row)

    inputs = {"input": row.numpy()}
    workload = bodies.rows_of_model(TORCH, "network", inputs, {"OUTPUT__0": run().numpy()})
    return FrameworkModel(workload, inputs, 8, 1, run)


def _place(repository: Path, model: str, file: str, config: str) -> Path:
    """Write a model without its file; returns where that belongs."""
    path = repository / model / "1" / file
    path.parent.mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(config)
    return path
