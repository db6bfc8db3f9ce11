"""Sends a batch of features to torch_linear and checks the scores with numpy."""

import argparse

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    features = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=np.float32)
    with httpclient.InferenceServerClient(options.url) as client:
        sent = httpclient.InferInput("FEATURES", features.shape, "FP32").set_data_from_numpy(features)
        scores = client.infer("torch_linear", [sent]).as_numpy("SCORES")

    weight = np.arange(8, dtype=np.float32).reshape(2, 4)
    print(f"{features.tolist()} -> {scores.tolist()}")
    np.testing.assert_allclose(scores, features @ weight.T + 0.5, rtol=1e-5)
    print("PASS: torch_linear")


if __name__ == "__main__":
    main()
