"""Sends images of two sizes to edges_openvino, shows the edges of the small one and checks both with numpy."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from make_model import KERNELS


def expected(image):
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3))
    slopes = np.einsum("yxij,kij->kyx", windows, KERNELS)
    return np.sqrt((slopes**2).sum(axis=0))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    square = np.zeros((6, 8), np.float32)
    square[2:, 3:] = 1
    noise = np.random.default_rng(0).random((40, 30), np.float32)
    with httpclient.InferenceServerClient(options.url) as client:
        for image in (square, noise):
            sent = httpclient.InferInput("IMAGE", [1, 1, *image.shape], "FP32").set_data_from_numpy(image[None, None])
            edges = client.infer("edges_openvino", [sent]).as_numpy("EDGES")[0, 0]
            np.testing.assert_allclose(edges, expected(image), rtol=1e-4, atol=1e-5)
            if image is square:
                print(edges.round(1))
    print("PASS: openvino")


if __name__ == "__main__":
    main()
