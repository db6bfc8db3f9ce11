"""Links from a model's home to what the operator has: a confined process makes them, with no more rights than the model."""

import os
from typing import Optional

from pybackend_wire.confinement import TREE

_MOST_LEVELS = 16
_REFERENCES = "refs"
"""Small files of Hugging Face's caches that name the current version of a repository, and change with it."""

_MOST_REFERENCE_BYTES = 4096
_UNFINISHED = (".incomplete", ".lock", ".part", ".partial")


def offer(outside: str, inside: str, kind: str) -> None:
    """Link a file or directory into the home, or everything below a directory; what cannot be linked is left out."""
    try:
        if kind != TREE:
            os.symlink(outside, inside)
        elif os.path.isdir(outside):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            _link_below(outside, inside, _MOST_LEVELS)
    except OSError:
        pass  # it is there already, or is closed to this process


def _link_below(outside: str, inside: str, levels: int) -> None:
    try:
        with os.scandir(outside) as entries:
            found = list(entries)
        os.mkdir(inside)
    except FileExistsError:
        pass
    except OSError:
        return
    for entry in found:
        if entry.name.startswith(".") or entry.name.endswith(_UNFINISHED):
            continue
        path = os.path.join(inside, entry.name)
        try:
            if entry.is_dir(follow_symlinks=False):
                if levels:
                    _link_below(entry.path, path, levels - 1)
            elif not os.path.lexists(path):
                _link(entry, path)
        except OSError:
            continue


def _link(entry: "os.DirEntry[str]", path: str) -> None:
    text = _own_link(entry)
    if text is not None:
        os.symlink(text, path)
    elif _REFERENCES in entry.path.split(os.sep):
        with open(entry.path, "rb") as file:
            data = file.read(_MOST_REFERENCE_BYTES)
        with open(path, "xb") as copy:
            copy.write(data)
    elif os.access(entry.path, os.R_OK):
        os.symlink(entry.path, path)


def _own_link(entry: "os.DirEntry[str]") -> "Optional[str]":
    """The text of a relative link: what it leads to is below the same directory, and is linked at the same place."""
    if not entry.is_symlink():
        return None
    text = os.readlink(entry.path)
    return None if os.path.isabs(text) else text
