"""Sends a signal to an ensemble whose steps share a process, and looks at what they count."""

import argparse

import numpy as np
import tritonclient.http as httpclient

STEPS = ("smooth_signal", "find_peaks", "measure_peaks")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    signal = np.zeros(100_000, dtype=np.float32)
    signal[[100, 2_000, 30_000]] = 3, 6, 1.5

    with httpclient.InferenceServerClient(options.url) as client:

        def counts():
            return [client.get_inference_statistics(name)["model_stats"][0]["inference_count"] for name in STEPS]

        before = counts()
        for _ in range(10):
            values = httpclient.InferInput("SIGNAL", signal.shape, "FP32").set_data_from_numpy(signal)
            result = client.infer("peaks", [values])
        heights = result.as_numpy("HEIGHTS")
        for place, height in zip(result.as_numpy("PLACES"), heights, strict=True):
            print(f"a peak at {place}: {height:.2f}")
        np.testing.assert_allclose(heights, [0.5, 1, 0.25])
        ran = [after - count for after, count in zip(counts(), before, strict=True)]
        print(f"every step counts as ever: {ran}")
        assert ran == [10, 10, 10], ran
    print("PASS: process_group")


if __name__ == "__main__":
    main()
