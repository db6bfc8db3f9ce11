"""Where the loader finds the libraries of an environment's Python: known to that process, kept from what it starts."""

import os

LIBRARY_PATH = "PYBACKEND_LIBRARY_PATH"
"""Says the same as ``LD_LIBRARY_PATH`` where the host has set that."""


def forget_library_path() -> None:
    """Have programs of the system that a model starts load the system's libraries; the loader of this process has read it."""
    own = os.environ.pop(LIBRARY_PATH, None)
    if own is not None and os.environ.get("LD_LIBRARY_PATH") == own:
        del os.environ["LD_LIBRARY_PATH"]
