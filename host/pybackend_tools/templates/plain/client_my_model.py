"""Sends one request to the model, which `pybackend dev` serves.

Give the URL of a server on the command line if it is not http://localhost:8000.
"""

from __future__ import annotations

import json
import sys
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
MODEL = f"{SERVER}/v2/models/my_model"


def scaled(values: list[float]) -> list[float]:
    x = {"name": "X", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    body = json.dumps({"inputs": [x]}).encode()
    with urlopen(f"{MODEL}/infer", body) as response:
        outputs = json.load(response)["outputs"]
    return outputs[0]["data"]


if __name__ == "__main__":
    try:
        print("Y:", scaled([1.0, 2.0, 3.0]))
    except HTTPError as error:
        sys.exit(f"the server answers: {error.read().decode()}")
    except URLError as error:
        sys.exit(
            f"no server answers at {SERVER}: {error.reason}. Start `pybackend dev`"
        )
