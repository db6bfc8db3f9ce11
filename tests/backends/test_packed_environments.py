"""Backends in environments that ``pybackend pack --backend`` makes, with another Python than the server's.

Packing takes minutes, so these tests run under ``make test-frameworks`` only, which sets the variable below. There is
none of vLLM: its environment has gigabytes for a GPU, and the tests of that backend run in an environment of their own
anyway.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybackend.modelconfig.backends import lock_of
from tests.floor.environments import Unavailable, interpreters
from tests.support.conda_channel import kept
from tests.support.inference import infer
from tests.support.package_sources import installed_pins, sources_of_pip
from tests.support.packed_environments import run_pack
from tests.support.server import serving
from tests.support.server_environments import OLDEST_MINOR, server_python

VARIABLE = "PYBACKEND_TEST_PACKING"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.thorough,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"packing takes minutes: {VARIABLE}=1 wants it"),
]

PACK_DEADLINE_S, LOAD_DEADLINE_S = 1500, 600
WITHOUT_CUDA = {"UV_TORCH_BACKEND": "cpu"}
"""The builds of torch for GPUs are gigabytes larger."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """A request to the model ``m``, and the library's own answer in the server's Python."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def fil(version: Path, random: np.random.Generator) -> Sample:
    xgboost = pytest.importorskip("xgboost")
    rows = random.random((100, 4), np.float32)
    booster = xgboost.train({"max_depth": 3, "nthread": 1}, xgboost.DMatrix(rows, rows[:, 0]), 4)
    booster.save_model(version / "xgboost.ubj")
    return Sample({"input__0": rows[:3]}, {"output__0": booster.inplace_predict(rows[:3]).reshape(3, 1)})


def sklearn(version: Path, random: np.random.Generator) -> Sample:
    skops = pytest.importorskip("skops.io")
    linear_model = pytest.importorskip("sklearn.linear_model")
    rows = random.random((100, 4))
    line = linear_model.Ridge().fit(rows, rows[:, 0])
    skops.dump(line, version / "model.skops")
    return Sample({"input": rows[:3]}, {"prediction": line.predict(rows[:3]).reshape(3, 1)})


def onnxruntime(version: Path, random: np.random.Generator) -> Sample:
    library = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx", reason="the package onnx makes the model")
    from tests.backends.onnxruntime import graphs

    path = graphs.dense(version / "model.onnx", random, [16, 8, 4])
    x = random.random((3, 16), np.float32)
    return Sample({"x": x}, {"y": library.InferenceSession(path).run(["y"], {"x": x})[0]})


def openvino(version: Path, random: np.random.Generator) -> Sample:
    library = pytest.importorskip("openvino")
    from tests.backends.openvino import networks

    path = networks.dense(version / "model.xml", random)
    x = random.random((3, 16), np.float32)
    return Sample({"x": x}, {"y": library.Core().compile_model(path, "CPU")({"x": x})["y"]})


def litert(version: Path, random: np.random.Generator) -> Sample:
    pytest.importorskip("ai_edge_litert")
    from tests.backends.litert import files

    files.addition(version / "model.tflite")
    a, b = random.random((2, 3, 3), np.float32)
    return Sample({"a": a, "b": b}, {"sum": a + b})


def tensorflow(version: Path, random: np.random.Generator) -> Sample:
    pytest.importorskip("tensorflow")
    from tests.backends.tensorflow import networks

    path = networks.save(version / "model.savedmodel")
    x = random.random((3, 16), np.float32)
    return Sample({"x": x}, {"y": networks.direct(path, "serving_default", x=x)["y"]})


def pytorch(version: Path, random: np.random.Generator) -> Sample:
    torch = pytest.importorskip("torch")
    from tests.backends.pytorch import networks

    own = networks.save_trace(networks.Scores(), version / "model.pt", torch.randn(2, 4))
    x = random.random((3, 4), np.float32)
    with torch.inference_mode():
        return Sample({"x": x}, {"OUTPUT__0": own(torch.from_numpy(x)).numpy()})


def transformers(version: Path, random: np.random.Generator) -> Sample:
    library = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from tests.backends.transformers import tiny_models

    tiny_models.make_bert(version, "BertForSequenceClassification", ("bad", "good"), spread=0.5)
    text = "this food is not bad ."
    (best,) = library.pipeline("text-classification", str(version))(text)
    outputs = {"label": np.array([[best["label"].encode()]], object), "score": np.array([[best["score"]]], np.float32)}
    return Sample({"text": np.array([[text.encode()]], object)}, outputs)


WRITERS = (fil, litert, onnxruntime, openvino, pytorch, sklearn, tensorflow, transformers)


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Path]:
    """Where the server unpacks environments: gigabytes, which nobody keeps."""
    directory = tmp_path / "environments"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class Pair:
    """A server and an environment with different CPythons.

    Attributes:
        server: the interpreter of the server.
        python: the version of the environment's, such as ``3.13``.
        archive: the environment.
    """

    server: str
    python: str
    archive: Path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch and TensorFlow, about themselves
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_model_answers_as_its_library_from_an_environment_with_another_python(write, tmp_path, unpacked):
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    sample = write(version, np.random.default_rng(0))
    backend = write.__name__
    pair = different_pythons(backend)
    flags = (f"--backend-config={backend},environment={pair.archive}", f"--environment-cache-directory={unpacked}")
    with serving(tmp_path / "models", flags=flags, ready=False, python=(pair.server,)) as server:
        server.wait_for(rf"runs on Python {pair.python}\.", LOAD_DEADLINE_S)
        server.wait_for(r"model is ready in", LOAD_DEADLINE_S)
        assert Path(f"/proc/{server.process.pid}/exe").resolve() == Path(pair.server).resolve()
        answer = infer(server, "m", sample.inputs)
    for name, expected in sample.outputs.items():
        assert answer[name].shape == expected.shape
        if expected.dtype == object:
            assert answer[name].tolist() == expected.tolist()
        else:  # another release of the library may compute in another order
            np.testing.assert_allclose(answer[name], expected, rtol=1e-5, atol=1e-6)


def different_pythons(backend: str) -> Pair:
    """This process's Python for the server and another for the environment, or else the other way round.

    An index may have no builds for the other Python, or be out of reach; what this process has imported was to be had.
    The test is skipped where neither way goes.
    """
    others = [minor for minor in interpreters() if 9 <= minor <= 13 and minor != sys.version_info.minor]
    if not others:
        pytest.skip("there is only one CPython on this machine")
    other, own = f"3.{max(others)}", f"3.{sys.version_info.minor}"
    try:
        return Pair(sys.executable, other, packed(backend, other))
    except Unavailable as error:
        reason = f"no environment with CPython {other}: {error}"
    if max(others) < OLDEST_MINOR:
        pytest.skip(f"{reason}; and the server does not run on it")
    try:
        return Pair(server_python(max(others)), own, packed(backend, own, installed_pins(backend)))
    except Unavailable as error:
        pytest.skip(f"{reason}; and none with CPython {own} beside a server on {other}: {error}")


def packed(backend: str, python: str, pins: str = "") -> Path:
    """The archive of a backend's environment, kept for later runs.

    Args:
        backend: its name.
        python: the version of the environment's Python.
        pins: lines that pin packages; without any, the versions are those of the backend's lock.

    Raises:
        Unavailable: an index does not answer, or has no builds for this Python.
    """
    sources = sources_of_pip()

    def make(directory: Path) -> None:
        arguments = ["--backend", backend, "--python", python, "-o", "env.tar.zst"]
        environment = WITHOUT_CUDA | os.environ
        if pins:
            (directory / "pins.txt").write_text(pins)
            arguments.append("--upgrade")
            environment = sources | os.environ | {"UV_CONSTRAINT": "pins.txt"}
        done = run_pack(*arguments, deadline_s=PACK_DEADLINE_S, cwd=directory, env=environment)
        if done.returncode in ({3, 4} if pins else {4}):
            raise Unavailable(done.stderr.strip())
        assert done.returncode == 0, done.stderr

    inputs: list[object] = [pins, sources] if pins else [lock_of(backend).read_text()]
    return kept(f"{backend}-{python}", inputs, make) / "env.tar.zst"
