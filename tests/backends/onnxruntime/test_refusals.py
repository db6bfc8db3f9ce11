"""Files and configurations that cannot be served: one sentence each, with the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.server import serving

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx", reason="the package onnx makes the models")

from onnx import TensorProto, helper

from tests.backends.onnxruntime import graphs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TENSORS = """
max_batch_size: 4
input [ {{ name: "{0}" data_type: {1} dims: [ {2} ] }}, {{ name: "b" data_type: TYPE_FP32 dims: [ 3 ] }} ]
output [ {{ name: "sum" data_type: TYPE_FP32 dims: [ 3 ] }} ]
"""
CONFIGURATIONS = {
    "wrong_name": TENSORS.format("A1", "TYPE_FP32", 3),
    "wrong_type": TENSORS.format("a", "TYPE_INT8", 3),
    "wrong_dims": TENSORS.format("a", "TYPE_FP32", 5),
    "parameter": 'parameters { key: "intra_op_threads" value: { string_value: "1" } }',
    "level": 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "abacus" } ] } }',
    "provider": 'parameters { key: "execution_providers" value: { string_value: "AbacusExecutionProvider" } }',
}
EXPECTED = {
    "truncated": r"model 'truncated': ONNX Runtime \S+ cannot load \S+/1/model.onnx: .*(is truncated, or no ONNX file)",
    "text": r"model 'text': ONNX Runtime \S+ cannot load \S+/1/model.onnx: .*(is truncated, or no ONNX file)",
    "empty": r"model 'empty': ONNX Runtime \S+ cannot load \S+/1/model.onnx: .*(is truncated, or no ONNX file)",
    "opset": r"model 'opset': ONNX Runtime \S+ cannot load \S+/1/model.onnx: .*A newer onnxruntime in the model's environment",
    "hollow": r"model 'hollow': the directory \S+/1/model.onnx holds no model.onnx: a model with external data is a directory",
    "missing": r"model 'missing': there is no model.onnx in \S+/missing/1, which holds net.onnx: rename the model's file, or name it "
    r'in config.pbtxt, default_model_filename: \\"net.onnx\\"',
    "sequence": r"model 'sequence': input 'many' of model.onnx is of type seq\(tensor\(float\)\), and only tensors of numbers",
    "wrong_name": r"unexpected inference input 'A1', allowed inputs are: a TYPE_FP32 \[-1, 3\], b TYPE_FP32 \[-1, 3\]",
    "wrong_type": r"unable to load model 'wrong_type', configuration expects datatype TYPE_INT8 for input 'a', model provides TYPE_FP32",
    "wrong_dims": r"model 'wrong_dims', tensor 'a': the model expects 2 dimensions \(shape \[-1, 3\], in model.onnx\) but the model "
    r"configuration specifies 2 dimensions \(.*\): \[-1, 5\]",
    "parameter": r"model 'parameter': backend 'onnxruntime' has no parameter 'intra_op_threads': did you mean intra_op_thread_count",
    "level": r"model 'level': there is no execution accelerator 'abacus' for ONNX files; there are cuda, tensorrt, openvino",
    "provider": r"model 'provider': ONNX Runtime \S+ has no AbacusExecutionProvider here, it has .*CPUExecutionProvider.*: install",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = tmp_path_factory.mktemp("onnx") / "models"
    for name, config in CONFIGURATIONS.items():
        graphs.addition(models / name / "1" / "model.onnx")
        (models / name / "config.pbtxt").write_text(config)
    whole = graphs.addition(models / "truncated" / "1" / "model.onnx")
    whole.write_bytes(whole.read_bytes()[:-20])
    write(models / "text" / "1" / "model.onnx", "This is no model.")
    write(models / "empty" / "1" / "model.onnx", "")
    graphs.save(
        models / "opset" / "1" / "model.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, [1])],
        [("y", TensorProto.FLOAT, [1])],
        opset=999,
    )
    (models / "hollow" / "1" / "model.onnx").mkdir(parents=True)
    graphs.addition(models / "missing" / "1" / "net.onnx")
    write(models / "missing" / "config.pbtxt", 'backend: "onnxruntime"')
    sequence(models / "sequence" / "1" / "model.onnx")
    with serving(models, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(rf"0 of {len(list(models.iterdir()))} models are ready", 240)
        yield server


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def sequence(path: Path) -> None:
    """A graph that takes a list of tensors."""
    import onnx

    many = helper.make_tensor_sequence_value_info("many", TensorProto.FLOAT, None)
    length = helper.make_tensor_value_info("length", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["many"], ["length"])], "graph", [many], [length])
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=graphs.IR_VERSION), path)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_load_is_refused_with_a_reason(server, name):
    line = re.search(rf"failed to load '{name}' .*", server.output)[0]
    assert re.search(EXPECTED[name], line), line
    assert "Traceback" not in line
    assert "At:" not in line
