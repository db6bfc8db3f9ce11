"""Python's warnings of bytes that are compared with str, or become str, as lines of the server's log.

Imported only in a Python started with ``-b``. Without it such a comparison is silently false, and ``str()`` gives
``"b'...'"``.
"""

import os
import warnings
from typing import Any, Callable, Set, Tuple

from pybackend_sdk.cures import DECODE
from pybackend_sdk.logger import Logger

_LIBRARIES = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__)))
)
"""Python's own modules, the packages below them, and ours: what they do to bytes is not the author's to change."""

_PACKAGES = ("/site-packages/", "/dist-packages/")


def take_over(write_record: "Callable[[int, str, int, str], object]") -> None:
    """Write one line for each place in the author's code; other warnings appear as before."""
    show_other = warnings.showwarning
    seen: Set[Tuple[str, int]] = set()

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        if not issubclass(category, BytesWarning):
            show_other(message, category, filename, lineno, file, line)
        elif (filename, lineno) not in seen and _is_of_author(filename):
            seen.add((filename, lineno))
            write_record(int(Logger.WARNING), filename, lineno, f"{_slip(str(message))}. {DECODE}")

    warnings.showwarning = show


def _slip(message: str) -> str:
    if message.startswith("Comparison"):
        return f"{message}, which are never equal"
    return f"{message}, which gives \"b'...'\""


def _is_of_author(file: str) -> bool:
    return not os.path.realpath(file).startswith(_LIBRARIES) and not any(name in file for name in _PACKAGES)
