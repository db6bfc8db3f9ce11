"""The library path of an environment's Python: used by the process itself, hidden from the programs it starts."""

import os

LIBRARY_PATH = "PYBACKEND_LIBRARY_PATH"
"""Holds the same value as ``LD_LIBRARY_PATH`` if the host has set that."""


def forget_library_path() -> None:
    """Let system programs that a model starts load the system's libraries; our own loader has read the variable."""
    own = os.environ.pop(LIBRARY_PATH, None)
    if own is not None and os.environ.get("LD_LIBRARY_PATH") == own:
        del os.environ["LD_LIBRARY_PATH"]
