"""Sends numbers of bytes to readable_sizes and checks how they are said."""

import argparse

import numpy as np
import tritonclient.http as httpclient


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    sizes = np.array([3, 1_500, 28_600_000], dtype=np.int64)
    with httpclient.InferenceServerClient(options.url) as client:
        inputs = [httpclient.InferInput("BYTES", sizes.shape, "INT64").set_data_from_numpy(sizes)]
        texts = [text.decode() for text in client.infer("readable_sizes", inputs).as_numpy("TEXT")]

    for size, text in zip(sizes, texts, strict=True):
        print(f"{size} bytes are {text}")
    assert texts == ["3 Bytes", "1.5 kB", "28.6 MB"], texts
    print("PASS: packed_environment")


if __name__ == "__main__":
    main()
