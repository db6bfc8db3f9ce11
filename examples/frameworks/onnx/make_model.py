"""Writes the model: probabilities of three classes from four measurements, as a file that any training could export.

Give a path to write it there, and not into the example's repository.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = np.array([[0.4, 0.5, -0.9], [1.4, -0.3, -1.1], [-2.2, 0.4, 1.8], [-1.0, -0.9, 1.9]], np.float32)
BIAS = np.array([3.0, 1.0, -4.0], np.float32)


def main():
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["MEASUREMENTS", "weights", "bias"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["PROBABILITIES"]),
        ],
        "iris",
        [helper.make_tensor_value_info("MEASUREMENTS", TensorProto.FLOAT, ["flowers", 4])],
        [helper.make_tensor_value_info("PROBABILITIES", TensorProto.FLOAT, ["flowers", 3])],
        [numpy_helper.from_array(WEIGHTS, "weights"), numpy_helper.from_array(BIAS, "bias")],
    )
    own = Path(__file__).resolve().parent / "model_repository" / "iris_onnx" / "1" / "model.onnx"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else own
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


if __name__ == "__main__":
    main()
