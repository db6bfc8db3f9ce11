"""Sends texts to a pipeline of scikit-learn and compares the answers with the library's own."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from make_model import train

TEXTS = ["good people", "slow food", "a nice book"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url) as client:
        array = np.array(TEXTS, dtype=object).reshape(-1, 1)
        result = client.infer(
            "opinions", [httpclient.InferInput("text", array.shape, "BYTES").set_data_from_numpy(array)]
        )
    labels, probabilities = result.as_numpy("label")[:, 0], result.as_numpy("probabilities")

    for text, label, row in zip(TEXTS, labels, probabilities, strict=True):
        print(f"{text} -> {label.decode()} {row.max():.2f}")
    pipeline = train()
    assert [label.decode() for label in labels] == list(pipeline.predict(TEXTS))
    np.testing.assert_array_equal(probabilities, pipeline.predict_proba(TEXTS))
    print("PASS: sklearn")


if __name__ == "__main__":
    main()
