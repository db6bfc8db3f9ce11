"""Sends a sequence of requests to the model, which `pybackend dev` serves.

Give the URL of a server on the command line if it is not http://localhost:8000.
"""

from __future__ import annotations

import json
import random
import sys
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
MODEL = f"{SERVER}/v2/models/my_model"


def add(sequence: int, value: float, *, start: bool, end: bool) -> float:
    parameters = {
        "sequence_id": sequence,
        "sequence_start": start,
        "sequence_end": end,
    }
    x = {"name": "VALUE", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = json.dumps({"parameters": parameters, "inputs": [x]}).encode()
    with urlopen(f"{MODEL}/infer", body) as response:
        return json.load(response)["outputs"][0]["data"][0]


if __name__ == "__main__":
    values = [3.0, 4.0, 5.0]
    sequence = random.randrange(1, 2**63)  # every client needs its own
    try:
        for number, value in enumerate(values):
            last = number == len(values) - 1
            print("TOTAL:", add(sequence, value, start=number == 0, end=last))
    except HTTPError as error:
        sys.exit(f"the server answers: {error.read().decode()}")
    except URLError as error:
        sys.exit(
            f"no server answers at {SERVER}: {error.reason}. Start `pybackend dev`"
        )
