"""Sends a picture to the model, which `pybackend dev` serves.

Give the URL of a server on the command line if it is not http://localhost:8000, and
after it the file of a picture if it is not to be one that is drawn here.
"""

from __future__ import annotations

import io
import json
import struct
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from PIL import Image

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
MODEL = f"{SERVER}/v2/models/my_model"


def drawn() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (320, 200), "red").save(file, "PNG")
    return file.getvalue()


def classified(picture: bytes) -> tuple[str, float]:
    # The bytes follow the JSON as they are, each element behind its length.
    data = struct.pack("<I", len(picture)) + picture
    x = {
        "name": "PICTURE",
        "datatype": "BYTES",
        "shape": [1, 1],
        "parameters": {"binary_data_size": len(data)},
    }
    header = json.dumps({"inputs": [x]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    with urlopen(Request(f"{MODEL}/infer", header + data, headers)) as response:
        outputs = {each["name"]: each for each in json.load(response)["outputs"]}
    return outputs["LABEL"]["data"][0], outputs["SCORE"]["data"][0]


if __name__ == "__main__":
    try:
        picture = Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else drawn()
        label, score = classified(picture)
        print(f"{label} ({score:.2f})")
    except FileNotFoundError as error:
        sys.exit(f"there is no file {error.filename}")
    except HTTPError as error:
        sys.exit(f"the server answers: {error.read().decode()}")
    except URLError as error:
        sys.exit(
            f"no server answers at {SERVER}: {error.reason}. Start `pybackend dev`"
        )
