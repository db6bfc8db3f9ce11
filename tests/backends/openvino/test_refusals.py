"""Files and configurations that cannot be served: one sentence each, with the way out. And ONNX files, which can."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.server import serving

pytest.importorskip("openvino")
pytest.importorskip("onnx", reason="the package onnx makes some models")

from onnx import TensorProto, helper
from openvino import Type
from openvino import opset13 as ops

from tests.backends.onnxruntime import graphs
from tests.backends.openvino import networks

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(300)]

RANDOM = np.random.default_rng(5)
TENSORS = """
max_batch_size: 4
input [ {{ name: "{0}" data_type: {1} dims: [ {2} ] }}, {{ name: "b" data_type: TYPE_FP32 dims: [ 3 ] }} ]
output [ {{ name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }} ]
"""


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'


CONFIGURATIONS = {
    "wrong_name": TENSORS.format("A1", "TYPE_FP32", 3),
    "wrong_type": TENSORS.format("a", "TYPE_INT8", 3),
    "wrong_dims": TENSORS.format("a", "TYPE_FP32", 5),
    "parameter": parameter("INFERENCE_THREADS", "1"),
    "threads": parameter("INFERENCE_NUM_THREADS", "many"),
    "device": parameter("TARGET_DEVICE", "ABACUS"),
    "extension": parameter("CPU_EXTENSION_PATH", "/nowhere/more.so"),
}
IMAGES = {
    "too_many": "max_batch_size: 3\n" + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES"),
    "reshaped": 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 4, 8, 8 ] } ]\n'
    + parameter("RESHAPE_IO_LAYERS", "YES"),
}
OTHER_VERSION = r"A newer openvino in the model's environment, or a file written by an older one, mends it"
EXPECTED = {
    "truncated": r"model 'truncated': OpenVINO \S+ cannot read \S+/1/model.xml: Error parsing .* The file is truncated or damaged",
    "half_weights": r"OpenVINO \S+ cannot read \S+/1/model.xml: Incorrect weights in bin file! model.bin is truncated, or belongs to",
    "no_weights": r"OpenVINO \S+ cannot read \S+: Empty weights data .*! Put model.bin, which holds its weights, beside it",
    "text": r"model 'text': \S+/1/model.xml is no file of OpenVINO: it has no element <net>. openvino.save_model\(\) writes such a file",
    "version": rf"OpenVINO \S+ cannot read \S+: it does not know version 99 of such files. {OTHER_VERSION}",
    "opset": rf"OpenVINO \S+ cannot read \S+: .* unsupported opset: opset77. {OTHER_VERSION}",
    "operation": rf"OpenVINO \S+ cannot read \S+: .*contain the operation with type: Frobnicate. {OTHER_VERSION}",
    "onnx_text": r"OpenVINO \S+ cannot read \S+/1/model.onnx: the file is truncated or damaged, or its content does not fit its name",
    "onnx_operation": r"OpenVINO \S+ cannot read \S+: .*for operations: \S*Frobnicate.* CPU_EXTENSION_PATH names",
    "missing": r"model 'missing': there is no model.xml or model.onnx in \S+/missing/1, which holds net.xml: rename the model's file",
    "bf16": r"model 'bf16': input 'a' of model.xml is of type bf16, which cannot be sent: convert the model with an input of f32",
    "wrong_name": r"unexpected inference input 'A1', allowed inputs are: a TYPE_FP32 \[-1, 3\], b TYPE_FP32 \[-1, 3\] \(in model.xml",
    "wrong_type": r"unable to load model 'wrong_type', configuration expects datatype TYPE_INT8 for input 'a', model provides TYPE_FP32",
    "wrong_dims": r"model 'wrong_dims', tensor 'a': the model expects 2 dimensions \(shape \[-1, 3\], in model.xml\) but the model "
    r"configuration specifies 2 dimensions \(.*\): \[-1, 5\]",
    "parameter": r"backend 'openvino' has no parameter 'INFERENCE_THREADS': did you mean INFERENCE_NUM_THREADS",
    "threads": r"parameters INFERENCE_NUM_THREADS must be a whole number of at least 1, it is 'many'",
    "device": r"model 'device': OpenVINO \S+ finds no device ABACUS on this machine, it finds .*CPU.*: write TARGET_DEVICE",
    "extension": r"model 'extension': parameters CPU_EXTENSION_PATH: /nowhere/more.so cannot be loaded: .*cannot open shared object",
    "too_many": r"model 'too_many': max_batch_size is 3, and the batch size in model.xml is fixed to 2: write max_batch_size: 2, or",
    "reshaped": r"model 'reshaped': model.xml does not take the shapes that config.pbtxt asks for \('x' \[2, 4, 8, 8\]\): "
    r"Data batch channel count \(4\) does not match .* Write the shapes of the file",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = tmp_path_factory.mktemp("openvino") / "models"
    for name, config in CONFIGURATIONS.items():
        networks.addition(models / name / "1" / "model.xml")
        configure(models / name, config)
    for name, config in IMAGES.items():
        networks.image(models / name / "1" / "model.xml", RANDOM)
        configure(models / name, config)
    whole = networks.dense(models / "truncated" / "1" / "model.xml", RANDOM)
    content = whole.read_text()
    whole.write_text(content[:-300])
    weights = networks.dense(models / "half_weights" / "1" / "model.xml", RANDOM).with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-40])
    networks.dense(models / "no_weights" / "1" / "model.xml", RANDOM).with_suffix(".bin").unlink()
    changed(models / "version" / "1" / "model.xml", 'version="11"', 'version="99"')
    changed(models / "opset" / "1" / "model.xml", 'version="opset1"', 'version="opset77"')
    changed(models / "operation" / "1" / "model.xml", 'type="ReLU"', 'type="Frobnicate"')
    write(models / "text" / "1" / "model.xml", "This is no model.")
    write(models / "onnx_text" / "1" / "model.onnx", "This is no model.")
    configure(models / "onnx_text", "")
    row = ("x", TensorProto.FLOAT, ["n", 2])
    graphs.save(
        models / "onnx_operation" / "1" / "model.onnx",
        [helper.make_node("Frobnicate", ["x"], ["y"])],
        [row],
        [("y", *row[1:])],
    )
    configure(models / "onnx_operation", "")
    shutil.copytree(models / "wrong_name", models / "missing")
    (models / "missing" / "1" / "model.xml").rename(models / "missing" / "1" / "net.xml")
    configure(models / "missing", "")
    (models / "missing" / "1" / "model.bin").unlink(missing_ok=True)
    networks.addition(models / "bf16" / "1" / "model.xml", Type.bf16)
    graphs.addition(models / "onnx" / "1" / "net.onnx")
    configure(models / "onnx", 'default_model_filename: "net.onnx"')
    graphs.dense(models / "onnx_directory" / "1" / "model.onnx" / "model.onnx", RANDOM, (4, 8, 3))
    configure(models / "onnx_directory", "")
    x = networks.parameter("x", [-1, 2])
    half = ops.convert(x, "bf16")
    networks.save(models / "half" / "1" / "model.xml", [x], {"y": ops.negative(x), "half": half})
    count = len(list(models.iterdir()))
    with serving(models, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(rf"{count - len(EXPECTED)} of {count} models are ready", 240)
        yield server


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def configure(model: Path, config: str) -> None:
    write(model / "config.pbtxt", f'backend: "openvino"\n{config}')


def changed(path: Path, old: str, new: str) -> None:
    """A network in which a text is another one."""
    networks.dense(path, RANDOM)
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_load_is_refused_with_a_reason(server, name):
    line = re.search(rf"failed to load '{name}' .*", server.output)[0]
    assert re.search(EXPECTED[name], line), line
    assert "Traceback" not in line
    assert "At:" not in line


def test_files_of_onnx(server):
    """By ``default_model_filename``, and in a directory with their data."""
    a, b = RANDOM.random((2, 2, 3), np.float32)
    assert np.array_equal(infer(server, "onnx", {"a": a, "b": b})["sum"], a + b)
    assert infer(server, "onnx_directory", {"x": a[:, :1].repeat(4, 1)})["y"].shape == (2, 3)


def test_outputs_that_cannot_be_sent_are_left_out(server):
    assert "model.xml has outputs that cannot be sent and are left out: 'half' (bf16)" in server.output
    x = RANDOM.random((2, 2), np.float32)
    answer = infer(server, "half", {"x": x})
    assert list(answer.outputs) == ["y"]
    assert np.array_equal(answer["y"], -x)
