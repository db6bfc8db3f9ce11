"""Whether another user can reach what a model needs; asked before its process becomes one."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST_FILES = 10_000
"""Of a model's directory that are looked at: what a model needs, and the host has not seen, fails later, and says so."""


def obstacle(paths: Iterable[str], uid: int, gid: int) -> str:
    """Why some user cannot read one of these files, or what is below one of these directories; ``""`` if nothing is in the way.

    The sentence names what is in the way, and the command that changes it.
    """
    seen: set[str] = set()
    for path in paths:
        for way in _ways(path):
            if way not in seen:
                seen.add(way)
                if not _lets(way, uid, gid, stat.S_IXOTH):
                    return _sentence(way, f"chmod o+x {shlex.quote(way)}", "entered")
        readable = stat.S_IROTH | (stat.S_IXOTH if os.path.isdir(path) else 0)
        if not _lets(path, uid, gid, readable):
            return _sentence(path, f"chmod -R o+rX {shlex.quote(path)}", "read")
    return ""


def obstacle_below(directory: str, uid: int, gid: int) -> str:
    """The same for every file below a directory."""
    count = 0
    for parent, names, files in os.walk(directory):
        for name in (*names, *files):
            count += 1
            if count > MOST_FILES:
                return ""
            path = os.path.join(parent, name)
            if not os.path.islink(path) and not _lets(path, uid, gid, stat.S_IROTH):
                return _sentence(path, f"chmod -R o+rX {shlex.quote(directory)}", "read")
    return ""


def _ways(path: str) -> Iterator[str]:
    """Every directory on the way to a path, and to where it leads if links are followed."""
    for start in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        yield from (str(parent) for parent in reversed(Path(start).parents))


def _lets(path: str, uid: int, gid: int, wanted: int) -> bool:
    """True if a path's mode gives some user what is wanted, as bits for others."""
    try:
        status = os.stat(path)
    except OSError:
        return True  # nothing is in the way of what is not there
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode & (wanted << shift) == wanted << shift


def _sentence(path: str, command: str, verb: str) -> str:
    return f"{path} cannot be {verb} by other users than its own: `{command}` changes that"
