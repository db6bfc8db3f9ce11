"""Every form that ``pybackend optimize`` knows, of a file of each kind: converted, served, and equal to the original.

A form whose packages are not installed must say so; the command's own behaviour is tested in ``tests/e2e/cli``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.backends import test_imports as files

pytestmark = files.pytestmark

DEADLINE_S = 800


def network(path):
    """Two dense layers in ONNX."""
    import onnx

    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    sizes = {"w": (4, 8), "v": (8, 3)}
    weights = [
        onnx.numpy_helper.from_array(files.RANDOM.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    nodes = [
        make.make_node("MatMul", ["x", "w"], ["a"]),
        make.make_node("Relu", ["a"], ["b"]),
        make.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    ends = [[make.make_tensor_value_info(name, floats, ["rows", size])] for name, size in (("x", 4), ("y", 3))]
    graph = make.make_graph(nodes, "g", *ends, weights)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path / "network.onnx")
    return path / "network.onnx"


def forest_of_estimators(path):
    import skops.io
    from sklearn.ensemble import RandomForestClassifier

    skops.io.dump(RandomForestClassifier(5, max_depth=3).fit(files.ROWS, files.CLASSES), path / "forest.skops")
    return path / "forest.skops"


KINDS = {
    network: ("onnx", "onnxruntime"),
    forest_of_estimators: ("sklearn", "skops", "treelite"),
    files.xgboost_json: ("xgboost", "treelite"),
    files.lightgbm_text: ("lightgbm", "treelite"),
    files.torchscript_archive: ("torch",),
    files.exported_program: ("torch",),
    files.saved_model: ("tensorflow",),
}
"""By the function that writes a model: the packages without which it is skipped."""

INPUTS = {files.xgboost_json: "input__0", files.lightgbm_text: "input__0", network: "x", files.saved_model: "x"}

LACKS = r"\w+ is not installed$|backend '\w+' needs the Python package "


@pytest.mark.parametrize("write", KINDS, ids=[write.__name__ for write in KINDS])
def test_all_forms_of_a_file_are_equal_to_the_original(write, tmp_path):
    for package in KINDS[write]:
        pytest.importorskip(package)
    path = write(tmp_path)
    np.savez(tmp_path / "rows.npz", **{INPUTS.get(write, "input"): files.ROWS[:20]})
    data = [f"--data={tmp_path}/rows.npz", f"--calibration={tmp_path}/rows.npz", "--no-entry", "--window=0.1"]
    low = ["--low-precision-tolerance=1", f"--output={tmp_path}/out", f"--repository={tmp_path}/models"]
    command = [sys.executable, "-m", "pybackend", "optimize", str(path), *data, *low]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    outcomes = json.loads((tmp_path / "out/results.json").read_text())["outcomes"]
    reasons = {each["form"]["name"]: each["reason"] for each in outcomes}
    assert [each for each in reasons.items() if each[1] and not re.match(LACKS, each[1])] == []
    assert len(outcomes) >= 4
