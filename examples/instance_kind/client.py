"""Sends images to both instances of edges and checks that each finds the same edges."""

import argparse

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    image = np.zeros((6, 8), dtype=np.float32)
    image[2:5, 2:6] = 1  # a white box
    expected = np.zeros_like(image)
    expected[2:5, 2:6] += [[2, 1, 1, 2], [1, 0, 0, 1], [2, 1, 1, 2]]  # inside, towards the black pixels around it
    expected[[1, 5], 2:6] -= 1
    expected[2:5, [1, 6]] -= 1

    computed_by = set()
    with httpclient.InferenceServerClient(options.url) as client:
        for _ in range(4):
            sent = httpclient.InferInput("IMAGE", image.shape, "FP32").set_data_from_numpy(image)
            result = client.infer("edges", [sent])
            np.testing.assert_array_equal(result.as_numpy("EDGES"), expected)
            computed_by.add(result.as_numpy("COMPUTED_BY")[0].decode())

    for label in sorted(computed_by):
        print(label)
    print(result.as_numpy("EDGES").astype(int))
    assert [label.split()[0] for label in sorted(computed_by)] == ["edges_0_0", "edges_0_1"], computed_by
    print("PASS: instance_kind")


if __name__ == "__main__":
    main()
