"""Sends strings to string_upper and checks that they come back in capitals."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def upper(client, elements):
    tensor = np.array(elements, dtype=np.object_)
    sent = httpclient.InferInput("TEXT", tensor.shape, "BYTES").set_data_from_numpy(tensor)
    return client.infer("string_upper", [sent]).as_numpy("UPPER")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with httpclient.InferenceServerClient(options.url) as client:
        text = ["hello", "", "größe", "日本 rice"]
        received = [element.decode("utf-8") for element in upper(client, text)]
        print(f"{text} -> {received}")
        assert received == [element.upper() for element in text], received

        try:
            upper(client, [b"\xff\xfe"])
            refused = "not at all"
        except InferenceServerException as error:
            refused = str(error)
        print(f"bytes that are no text are refused: {refused}")
        assert "TEXT must be UTF-8" in refused, refused
    print("PASS: string_upper")


if __name__ == "__main__":
    main()
