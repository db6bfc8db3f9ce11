"""Sends rows to the fast form of a forest, and compares the answers with those of scikit-learn."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from make_model import ROWS, train


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    rows = ROWS[:3].astype(np.float32)
    with httpclient.InferenceServerClient(options.url) as client:
        result = client.infer(
            "visitors", [httpclient.InferInput("input__0", rows.shape, "FP32").set_data_from_numpy(rows)]
        )
    probabilities = result.as_numpy("output__0")

    for row, probability in zip(rows, probabilities[:, 1], strict=True):
        print(f"{row[0]:.2f} {row[1]:.2f} -> {probability:.2f}")
    np.testing.assert_allclose(probabilities, train().predict_proba(rows), atol=1e-6)
    print("PASS: optimized")


if __name__ == "__main__":
    main()
