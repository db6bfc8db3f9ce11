"""Sends the measurements of two flowers to iris_onnx and checks the probabilities with numpy."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from make_model import BIAS, WEIGHTS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    flowers = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], dtype=np.float32)
    with httpclient.InferenceServerClient(options.url) as client:
        sent = httpclient.InferInput("MEASUREMENTS", flowers.shape, "FP32").set_data_from_numpy(flowers)
        probabilities = client.infer("iris_onnx", [sent]).as_numpy("PROBABILITIES")

    for flower, row in zip(flowers, probabilities, strict=True):
        print(f"{flower.tolist()} -> {row.round(3).tolist()}")
    powers = np.exp(flowers @ WEIGHTS + BIAS)
    np.testing.assert_allclose(probabilities, powers / powers.sum(axis=1, keepdims=True), rtol=1e-4)
    print("PASS: onnx")


if __name__ == "__main__":
    main()
