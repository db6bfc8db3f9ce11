"""Draws pictures, sends them as files, and checks the labels that come back."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException


def draw(texture, rows=48, columns=64):
    """A picture in two colours as the bytes of a PPM file."""
    row, column = np.mgrid[:rows, :columns]
    across, down = column * 8 // columns % 2, row * 8 // rows % 2
    choice = {"plain": row * 0, "vertical stripes": across, "horizontal stripes": down, "chequered": across ^ down}
    colours = np.array([[20, 30, 90], [250, 220, 200]], dtype=np.uint8)[choice[texture]]
    return f"P6\n{columns} {rows}\n255\n".encode() + colours.tobytes()


def label(client, files):
    tensor = np.array(files, dtype=np.object_)
    sent = httpclient.InferInput("FILES", tensor.shape, "BYTES").set_data_from_numpy(tensor)
    result = client.infer("label_images", [sent])
    return [text.decode() for text in result.as_numpy("LABELS")], result.as_numpy("CONFIDENCE")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    textures = ["vertical stripes", "plain", "chequered", "horizontal stripes", "plain"]
    with httpclient.InferenceServerClient(options.url) as client:
        labels, confidence = label(client, [draw(texture) for texture in textures])
        for index, found in enumerate(labels):
            print(f"{found}: {confidence[index]:.0%}")
        assert labels == textures
        assert (confidence > 0.5).all(), confidence

        try:
            label(client, [draw("plain"), b"GIF89a"])
            refused = "not at all"
        except InferenceServerException as error:
            refused = str(error)
        print(f"a file that is no PPM is refused: {refused}")
        assert refused.startswith("[400] FILE must be a picture in binary PPM format"), refused
    print("PASS: preprocessing")


if __name__ == "__main__":
    main()
