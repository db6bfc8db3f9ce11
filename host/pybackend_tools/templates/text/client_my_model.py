"""Sends texts to the model, which `pybackend dev` serves.

Give the URL of a server on the command line if it is not http://localhost:8000.
"""

from __future__ import annotations

import json
import sys
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
MODEL = f"{SERVER}/v2/models/my_model"


def classified(texts: list[str]) -> list[tuple[str, float]]:
    shape = [len(texts), 1]
    x = {"name": "TEXT", "datatype": "BYTES", "shape": shape, "data": texts}
    body = json.dumps({"inputs": [x]}).encode()
    with urlopen(f"{MODEL}/infer", body) as response:
        outputs = {each["name"]: each for each in json.load(response)["outputs"]}
    labels, scores = outputs["LABEL"]["data"], outputs["SCORE"]["data"]
    return list(zip(labels, scores, strict=True))


if __name__ == "__main__":
    texts = ["A great film!", "I was bored: awful."]
    try:
        for text, (label, score) in zip(texts, classified(texts), strict=True):
            print(f"{text} {label} ({score:.2f})")
    except HTTPError as error:
        sys.exit(f"the server answers: {error.read().decode()}")
    except URLError as error:
        sys.exit(
            f"no server answers at {SERVER}: {error.reason}. Start `pybackend dev`"
        )
