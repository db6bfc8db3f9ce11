"""Sends tensors of several sizes to identity, as JSON and as bytes, and checks that they come back."""

import argparse

import numpy as np
import tritonclient.http as httpclient


def echo(client, tensor, *, binary):
    sent = httpclient.InferInput("INPUT0", tensor.shape, "FP32").set_data_from_numpy(tensor, binary_data=binary)
    wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)
    return client.infer("identity", [sent], outputs=[wanted]).as_numpy("OUTPUT0")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url) as client:
        for batch, length, binary in [(1, 5, False), (8, 5, False), (1, 0, True), (1, 5, True), (2, 1 << 20, True)]:
            tensor = np.linspace(-1, 1, batch * length, dtype=np.float32).reshape(batch, length)
            received = echo(client, tensor, binary=binary)
            np.testing.assert_array_equal(received, tensor)
            print(f"shape {list(tensor.shape)}, {tensor.nbytes} bytes, sent as {'bytes' if binary else 'JSON'}: same")
    print("PASS: identity")


if __name__ == "__main__":
    main()
