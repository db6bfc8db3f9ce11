"""Sends two vectors to an ensemble of two models and checks what comes out at its end, and in the middle."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    x = np.array([1, 2, 3, 4], dtype=np.float32)
    y = np.array([4, 3, 2, 1], dtype=np.float32)

    with httpclient.InferenceServerClient(options.url) as client:

        def ask(*outputs):
            inputs = [
                httpclient.InferInput(name, array.shape, "FP32").set_data_from_numpy(array)
                for name, array in (("X", x), ("Y", y))
            ]
            wanted = [httpclient.InferRequestedOutput(name) for name in outputs]
            return client.infer("difference_of_squares", inputs, outputs=wanted)

        result = ask()
        print(f"X * X - Y * Y = {result.as_numpy('RESULT')}")
        np.testing.assert_allclose(result.as_numpy("RESULT"), x * x - y * y)
        np.testing.assert_allclose(result.as_numpy("SUM"), x + y)

        result = ask("SUM")
        print(f"X + Y = {result.as_numpy('SUM')}, for which one step is enough")
        np.testing.assert_allclose(result.as_numpy("SUM"), x + y)
        assert result.as_numpy("RESULT") is None

        x = x.reshape(2, 2)
        try:
            ask()
            refused = "not at all"
        except InferenceServerException as error:
            refused = str(error)
        print(f"another shape is refused: {refused}")
        assert "unexpected shape for input 'X' for model 'difference_of_squares'" in refused
    print("PASS: ensemble")


if __name__ == "__main__":
    main()
