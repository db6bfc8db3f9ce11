"""Sends two vectors to add_sub over gRPC and checks their sum and difference."""

import argparse

import numpy as np
import tritonclient.grpc as grpcclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    left = np.array([1, 2, 3, 4], dtype=np.float32)
    right = np.array([10, 20, 30, 40], dtype=np.float32)

    with grpcclient.InferenceServerClient(options.url) as client:
        inputs = [
            grpcclient.InferInput("INPUT0", left.shape, "FP32").set_data_from_numpy(left),
            grpcclient.InferInput("INPUT1", right.shape, "FP32").set_data_from_numpy(right),
        ]
        result = client.infer("add_sub", inputs)

    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    print(f"{left} + {right} = {total}")
    print(f"{left} - {right} = {difference}")
    np.testing.assert_allclose(total, left + right)
    np.testing.assert_allclose(difference, left - right)
    print("PASS: add_sub")


if __name__ == "__main__":
    main()
