"""Sends requests one at a time, then many at once, and shows how many of them the model was given together."""

import argparse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.http as httpclient

AT_ONCE = 16


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    def ask(value):
        with httpclient.InferenceServerClient(options.url) as client:
            array = np.array([[value]], dtype=np.float32)
            result = client.infer(
                "batch_size", [httpclient.InferInput("INPUT", array.shape, "FP32").set_data_from_numpy(array)]
            )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT"), array * 2)
        return int(result.as_numpy("BATCH")[0, 0])

    alone = [ask(value) for value in range(4)]
    print(f"one at a time: batches of {set(alone)}")
    with ThreadPoolExecutor(AT_ONCE) as threads:
        together = Counter(threads.map(ask, range(8 * AT_ONCE)))
    for size, count in sorted(together.items()):
        print(f"{AT_ONCE} at once: {count:3} requests in batches of {size}")
    assert set(alone) == {1}, "nobody waits for company that does not come"
    assert max(together) > 1, "requests that wait together are executed together"
    print("PASS: dynamic_batching")


if __name__ == "__main__":
    main()
