"""Checks whether another user can reach a model's files, before its process becomes that user."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

MOST_FILES = 10_000
"""Most files of a model's directory to check; an unreadable file beyond them causes an error when the model uses it."""


def obstacle(paths: Iterable[str], uid: int, gid: int) -> str:
    """Explain why a user cannot read one of these files, or use a directory; ``""`` if nothing is in the way.

    The sentence names the obstacle and the command that removes it.
    """
    seen: set[str] = set()
    for path in paths:
        ways = [way for way in _ways(path) if way not in seen]
        seen.update(ways)
        blocked = _first_closed(ways, uid, gid)
        if blocked:
            return blocked
        readable = stat.S_IROTH | (stat.S_IXOTH if os.path.isdir(path) else 0)
        if not _lets(path, uid, gid, readable):
            return _sentence(path, f"chmod -R o+rX {shlex.quote(path)}", "read")
    return ""


def obstacle_on_way(paths: Iterable[str], uid: int, gid: int) -> str:
    """Explain why a user cannot reach one of these, checking only the directories above them; ``""`` if he can."""
    return _first_closed([way for path in paths for way in _ways(path)], uid, gid)


def _first_closed(ways: Iterable[str], uid: int, gid: int) -> str:
    for way in ways:
        if not _lets(way, uid, gid, stat.S_IXOTH):
            return _sentence(way, f"chmod o+x {shlex.quote(way)}", "entered")
    return ""


def obstacle_below(directory: str, uid: int, gid: int) -> str:
    """Explain why a user cannot read a file below a directory; ``""`` if all are readable."""
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
    """Return every directory above a path, and above the place that its links lead to."""
    for start in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        yield from (str(parent) for parent in reversed(Path(start).parents))


def _lets(path: str, uid: int, gid: int, wanted: int) -> bool:
    """Whether a path's mode grants a user these permissions, given as bits for others."""
    try:
        status = os.stat(path)
    except OSError:
        return True  # a missing path is not an obstacle
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode & (wanted << shift) == wanted << shift


def _sentence(path: str, command: str, verb: str) -> str:
    return f"{path} cannot be {verb} by other users: run `{command}`"
