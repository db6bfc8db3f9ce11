"""Calls scale with Triton's HTTP client."""

import argparse

import numpy as np
import tritonclient.http as client


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    x = np.array([1, 2, 3], dtype=np.float32)
    with client.InferenceServerClient(options.url) as server:
        tensor = client.InferInput("X", x.shape, "FP32").set_data_from_numpy(x)
        y = server.infer("scale", [tensor], parameters={"factor": 10}).as_numpy("Y")
    print(f"{x} * 10 = {y}")
    assert y.tolist() == [10, 20, 30]
    print("PASS: clients")


if __name__ == "__main__":
    main()
