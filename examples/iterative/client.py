"""Asks for several numbers at once; each request is executed until its model is through with it."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.http as httpclient

KNOWN = {1: 0, 2: 1, 6: 8, 7: 16, 27: 111, 97: 118, 871: 178, 6171: 261}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    def ask(number):
        with httpclient.InferenceServerClient(options.url) as client:
            array = np.array([[number]], dtype=np.int64)
            result = client.infer(
                "collatz", [httpclient.InferInput("NUMBER", array.shape, "INT64").set_data_from_numpy(array)]
            )
        return int(result.as_numpy("STEPS")[0, 0]), int(result.as_numpy("SHARED")[0, 0])

    with ThreadPoolExecutor(len(KNOWN)) as threads:
        results = dict(zip(KNOWN, threads.map(ask, KNOWN), strict=True))
    for number, (steps, _) in results.items():
        print(f"{number:5} takes {steps:3} steps")
    assert {number: steps for number, (steps, _) in results.items()} == KNOWN
    print("PASS: iterative")


if __name__ == "__main__":
    main()
