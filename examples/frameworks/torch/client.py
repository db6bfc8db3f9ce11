"""Sends three drawings to strokes_torch and prints the class of each."""

import argparse

import numpy as np
import tritonclient.http as httpclient

CLASSES = ["vertical", "horizontal", "none"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    drawings = np.zeros((3, 1, 8, 8), dtype=np.float32)
    drawings[0, 0, 1:7, 4] = 1
    drawings[1, 0, 3, 1:7] = 1
    with httpclient.InferenceServerClient(options.url) as client:
        # Traced files keep the names of the inputs, and none for the outputs.
        sent = httpclient.InferInput("drawing", drawings.shape, "FP32").set_data_from_numpy(drawings)
        scores = client.infer("strokes_torch", [sent]).as_numpy("OUTPUT__0")

    named = [CLASSES[place] for place in scores.argmax(axis=1)]
    for name, row in zip(named, scores, strict=True):
        print(f"{name}: {row.round(3).tolist()}")
    assert named == ["vertical", "horizontal", "none"]
    print("PASS: torch")


if __name__ == "__main__":
    main()
