"""Asks a slow model the same question again, and shows by time and by metrics that the server remembers the answer."""

import argparse
import time
import urllib.request

import numpy as np
import tritonclient.http as httpclient

LABELS = '{model="slow_square",version="1"}'


def read_metrics(address):
    """Sample -> value of the metrics page, for the model of this example."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if LABELS in line]
    return {sample.replace(LABELS, ""): float(value) for sample, _, value in samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    parser.add_argument("--metrics", default="localhost:8002", help="host:port of its metrics (default: %(default)s)")
    options = parser.parse_args()

    # A question of its own each time that this runs: the server may remember those of the last time.
    x = np.random.default_rng().random(3, dtype=np.float32)
    before = read_metrics(options.metrics)
    assert "nv_cache_num_hits_per_model" in before, "start the server with --cache-config=local,size=16777216"

    with httpclient.InferenceServerClient(options.url) as client:

        def ask(array, text, **parameters):
            sent = httpclient.InferInput("X", array.shape, "FP32").set_data_from_numpy(array)
            began = time.monotonic()
            result = client.infer("slow_square", [sent], parameters=parameters)
            print(f"{text + ':':24} {1000 * (time.monotonic() - began):5.0f} ms")
            np.testing.assert_allclose(result.as_numpy("SQUARE"), array * array)
            return int(result.as_numpy("EXECUTION")[0])

        first = ask(x, "the first time")
        assert ask(x, "the same again") == first, "it was executed again"
        assert ask(x, "and again") == first
        assert ask(x + 1, "other numbers") == first + 1
        assert ask(x, "with another parameter", unit="metres") == first + 2

    after = read_metrics(options.metrics)
    for name in ("nv_inference_request_success", "nv_inference_exec_count", "nv_cache_num_hits_per_model"):
        print(f"{name} grew by {after[name] - before[name]:.0f}")
    assert after["nv_cache_num_hits_per_model"] - before["nv_cache_num_hits_per_model"] == 2
    assert after["nv_inference_exec_count"] - before["nv_inference_exec_count"] == 3
    print("PASS: response_cache")


if __name__ == "__main__":
    main()
