"""Writes the model: edges in a grey image of any size, as the two files that OpenVINO's converter makes of any network."""

from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as ops

KERNELS = np.array([[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], [[-1, -2, -1], [0, 0, 0], [1, 2, 1]]], np.float32)
"""Sobel's: how much brighter an image gets to the right, and downwards."""


def main():
    image = ops.parameter(openvino.PartialShape([-1, 1, -1, -1]), openvino.Type.f32, name="IMAGE")
    slopes = ops.convolution(image, ops.constant(KERNELS[:, None]), [1, 1], [0, 0], [0, 0], [1, 1])
    edges = ops.sqrt(ops.reduce_sum(ops.multiply(slopes, slopes), np.array([1]), True))
    image.output(0).set_names({"IMAGE"})
    edges.output(0).set_names({"EDGES"})
    path = Path(__file__).resolve().parent / "model_repository" / "edges_openvino" / "1" / "model.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    openvino.save_model(openvino.Model([ops.result(edges)], [image], "edges"), path, compress_to_fp16=False)


if __name__ == "__main__":
    main()
