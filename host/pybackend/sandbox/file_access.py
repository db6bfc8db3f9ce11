"""Checks whether a user can reach files, before a process becomes that user: by modes and access control lists."""

import os
import stat
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_FILES = 10_000
"""Most files of a model's directory to check; an unreadable file beyond them causes an error when the model uses it."""

_MOST_LINKS = 40
"""The kernel follows no more."""

_ACL = "system.posix_acl_access"
_NOBODY = 65534
_ENTRY = struct.Struct("<HHI")
_HEADER_BYTES = 4
_USER, _OWNING_GROUP, _GROUP, _MASK, _OTHERS = 0x02, 0x04, 0x08, 0x10, 0x20


@dataclass(frozen=True)
class Account:
    """A user without privileges, as file permissions see one."""

    uid: int
    groups: frozenset[int]


@dataclass(frozen=True)
class Obstacle:
    """A place that a user cannot use."""

    path: str
    owner: int
    on_way: bool  # whether it is a directory that must be entered on the way; else it is one that must be read

    @property
    def verb(self) -> str:
        """The access that is refused, for sentences."""
        return "enter" if self.on_way else "read"


def is_enforced(place: Obstacle, account: Account | None) -> bool:
    """Whether the file system really refuses a place: some, on networks, are mounted so that modes have no effect.

    A small program asks, as the user; it asks as nobody instead of root, which would have privileges. If the program
    cannot run, the modes count. Blocking.
    """
    if account is None:
        return True  # the kernel was asked already
    uid = account.uid or _NOBODY
    command = ["test", "-x" if place.on_way else "-r", place.path]
    try:
        asked = subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True, check=False, cwd="/")
    except OSError:
        return True
    return asked.returncode != 0


def obstacle(paths: Iterable[str], account: Account | None) -> Obstacle | None:
    """Find the first place that keeps a user from reading one of these files, or from using a directory.

    Args:
        paths: files and directories; missing ones are not obstacles.
        account: the user, None for the user of this process with its rights.
    """
    seen: set[str] = set()
    for path in paths:
        ways = [way for way in _ways(path) if way not in seen]
        seen.update(ways)
        blocked = _first_closed(ways, account)
        if blocked is not None:
            return blocked
        readable = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        if not _lets(path, account, readable):
            return _obstacle(path, on_way=False)
    return None


def may_add(directory: str, account: Account | None) -> bool:
    """Whether a user can create files in a directory."""
    return os.path.isdir(directory) and not obstacle([directory], account) and _lets(directory, account, os.W_OK)


def obstacle_on_way(paths: Iterable[str], account: Account | None) -> Obstacle | None:
    """Find the first directory above one of these that a user cannot enter."""
    return _first_closed([way for path in paths for way in _ways(path)], account)


def obstacle_below(directory: str, account: Account | None) -> Obstacle | None:
    """Find a file below a directory that a user cannot read; links are not followed."""
    for path in _below(directory):
        if not os.path.islink(path) and not _lets(path, account, os.R_OK):
            return _obstacle(path, on_way=False)
    return None


def links_below(directory: str) -> list[str]:
    """Return the links below a directory whose targets exist."""
    return [path for path in _below(directory) if os.path.islink(path) and os.path.exists(path)]


def _below(directory: str) -> Iterator[str]:
    count = 0
    for parent, names, files in os.walk(directory):
        for name in (*names, *files):
            count += 1
            if count > MOST_FILES:
                return
            yield os.path.join(parent, name)


def _first_closed(ways: Iterable[str], account: Account | None) -> Obstacle | None:
    return next((_obstacle(way, on_way=True) for way in ways if not _lets(way, account, os.X_OK)), None)


def _obstacle(path: str, *, on_way: bool) -> Obstacle:
    return Obstacle(path, os.stat(path).st_uid, on_way)


def _ways(path: str) -> Iterator[str]:
    """Return every directory above a path, and above the places that its links lead to."""
    hops = [os.path.abspath(path)]
    while len(hops) < _MOST_LINKS and os.path.islink(hops[-1]):
        hops.append(os.path.abspath(os.path.join(os.path.dirname(hops[-1]), os.readlink(hops[-1]))))
    for start in dict.fromkeys((*hops, os.path.realpath(path))):
        yield from (str(parent) for parent in reversed(Path(start).parents))


def _lets(path: str, account: Account | None, wanted: int) -> bool:
    """Whether a user has these permissions for a file."""
    try:
        status = os.stat(path)
    except OSError:
        return True  # a missing path is not an obstacle
    if account is None:
        return os.access(path, wanted)
    if status.st_uid == account.uid:
        return _has(status.st_mode >> 6, wanted)
    entries = _access_control_list(path)
    if entries:
        return _listed(entries, status, account, wanted)
    return _has(status.st_mode >> 3 if status.st_gid in account.groups else status.st_mode, wanted)


def _has(mode: int, wanted: int) -> bool:
    return mode & wanted == wanted


def _access_control_list(path: str) -> list[tuple[int, int, int]]:
    """Return the entries of a file's access control list, as (kind, permissions, user or group).

    None if it has none.
    """
    try:
        packed = os.getxattr(path, _ACL)
        return [(kind, mode, number) for kind, mode, number in _ENTRY.iter_unpack(packed[_HEADER_BYTES:])]
    except (OSError, struct.error):
        return []


def _listed(entries: list[tuple[int, int, int]], status: os.stat_result, account: Account, wanted: int) -> bool:
    """Apply an access control list to a user who does not own the file, as ``acl(5)`` says."""
    of = {kind: mode for kind, mode, _ in entries}
    mask = of.get(_MASK, 0o7)
    for kind, mode, number in entries:
        if kind == _USER and number == account.uid:
            return _has(mode & mask, wanted)
    groups = [mode for kind, mode, number in entries if kind == _GROUP and number in account.groups]
    if status.st_gid in account.groups:
        groups.append(of.get(_OWNING_GROUP, 0))
    if groups:
        return any(_has(mode & mask, wanted) for mode in groups)
    return _has(of.get(_OTHERS, stat.S_IMODE(status.st_mode)), wanted)
