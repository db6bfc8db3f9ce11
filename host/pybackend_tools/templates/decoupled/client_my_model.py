"""Reads a stream of responses from the model, which `pybackend dev` serves.

Give the URL of a server on the command line if it is not http://localhost:8000.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

SERVER = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
MODEL = f"{SERVER}/v2/models/my_model"


def words(text: str) -> Iterator[str]:
    body = json.dumps({"TEXT": text}).encode()
    with urlopen(f"{MODEL}/generate_stream", body) as events:
        for line in events:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    sys.exit(f"the model answers: {event['error']}")
                yield event["WORD"]


if __name__ == "__main__":
    try:
        for word in words("once upon a time"):
            print("WORD:", word)
    except HTTPError as error:
        sys.exit(f"the server answers: {error.read().decode()}")
    except URLError as error:
        sys.exit(
            f"no server answers at {SERVER}: {error.reason}. Start `pybackend dev`"
        )
