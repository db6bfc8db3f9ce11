"""The file that a server traces into, read while the server may be writing it."""

import json
from pathlib import Path
from typing import Any


def fragments_in(path: Path) -> list[dict[str, Any]]:
    """The fragments in a trace file: none if there is no file yet, or if the server is in the middle of a write."""
    if not path.exists():
        return []
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError:
        return []
