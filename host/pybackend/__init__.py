"""pybackend: serves models written for Triton's Python backend.

``pybackend.Server`` and the names beside it are a server in this process; they are imported when they are first used.
"""

from importlib import import_module

__version__ = "0.1.0.dev0"

_IN_PROCESS = "pybackend.in_process"


def __getattr__(name: str) -> object:
    if not name.startswith("_"):
        package = import_module(_IN_PROCESS)
        if name in package.__all__:
            globals()[name] = value = getattr(package, name)
            return value
    raise AttributeError(f"module 'pybackend' has no attribute '{name}'")
