"""The environment variables that uv is started with, and those that tell it where packages come from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_LISTS: Mapping[str, str] = {
    "UV_BUILD_CONSTRAINT": " ",
    "UV_CONSTRAINT": " ",
    "UV_DEFAULT_INDEX": " ",
    "UV_EXCLUDE": " ",
    "UV_EXTRA_INDEX_URL": " ",
    "UV_FIND_LINKS": ",",
    "UV_INDEX": " ",
    "UV_INDEX_URL": " ",
    "UV_OVERRIDE": " ",
}
"""Variables with files, directories and URLs, and what separates them."""

_SINGLE = ("UV_CACHE_DIR", "UV_CONFIG_FILE")
_NOT_FOR_PACKING = {"VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_PROJECT"}

_INDEX = re.compile(r"\s*(-i|--index-url|--default-index)(?:[\s=]|$)")

OTHER_PLACES = (
    "If packages come from a mirror or a directory here, name it: UV_DEFAULT_INDEX=URL or UV_FIND_LINKS=DIRECTORY. Settings of pip "
    "are not read"
)
"""The way out if the default index is out of reach."""


def uv_environment() -> dict[str, str]:
    """This process's environment, set so that uv neither picks or downloads an interpreter, nor wraps its errors.

    uv runs in the directory of the file that lists the packages; paths in its variables are relative to this process's.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CONDA")) and name not in _NOT_FOR_PACKING
    }
    for name in _SINGLE:
        if kept.get(name):
            kept[name] = os.path.abspath(kept[name])
    for name, separator in _LISTS.items():
        if kept.get(name):
            kept[name] = separator.join(map(_absolute, kept[name].split(separator)))
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "COLUMNS": "100000"}


def uv_cache_directory() -> Path:
    """The cache directory of uv, as determined by the environment alone."""
    named = os.environ.get("UV_CACHE_DIR")
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "uv").expanduser()


def names_an_index(lines: Sequence[str]) -> bool:
    """Whether the environment, or a line of a requirements file, replaces the default index."""
    return any(os.environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")) or any(map(_INDEX.match, lines))


def _absolute(place: str) -> str:
    """A path that exists as an absolute one; URLs, and what exists nowhere, unchanged."""
    return os.path.abspath(place) if place and os.path.exists(place) else place
