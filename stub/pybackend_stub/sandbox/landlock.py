"""Landlock: restricts the files that this process and its children can reach; needs no privilege.

A rule applies to its path and everything below; access without a rule is denied with EACCES. A kernel enforces only
what its version of Landlock supports: an older one restricts less, which the caller reports.
"""

import ctypes
import errno
import os
import stat
import struct
from typing import Dict, Iterable, Sequence

from pybackend_stub.sandbox.kernel import bound, syscall
from pybackend_wire.confinement import DEVICE, EXECUTE, LIST, READ, WRITE

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_OF_KERNEL = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8
_MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = 1 << 9, 1 << 10, 1 << 11, 1 << 12
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights that a rule for anything but a directory can grant."""

_RIGHTS = {
    LIST: _READ_DIR,
    READ: _READ_FILE | _READ_DIR,
    EXECUTE: _EXECUTE,
    WRITE: (
        _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
        | _REFER | _TRUNCATE
    ),
    DEVICE: _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE,
}  # fmt: skip

_RULE = struct.Struct("=Qi")

_OPENAT2 = 437
_RESOLVE_NO_SYMLINKS = 4
_HOW = ctypes.create_string_buffer(struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS))

_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

RENAMES, TRUNCATION, NETWORK, DEVICES, SCOPES = 2, 3, 4, 5, 6
"""The version of Landlock that introduced each feature."""


def version() -> int:
    """Return the kernel's version of Landlock, 0 if it has none or the surroundings of this process forbid it."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION_OF_KERNEL)
    except OSError:
        return 0


def restrict(known: int, paths: "Iterable[Sequence[str]]", network: bool) -> None:
    """Allow access only to these paths from now on, and signals and inspection only within this domain.

    Args:
        paths: with access letters of :mod:`pybackend_wire.confinement`; missing paths and paths with links are skipped.
    """
    handled = _handled(known)
    words = [handled]
    if known >= NETWORK:
        words.append(0 if network else _BIND_TCP | _CONNECT_TCP)
    if known >= SCOPES:
        words.append(_SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = syscall(_CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)
    try:
        _allow(ruleset, paths, handled)
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _handled(known: int) -> int:
    handled = _REFER - 1
    for since, right in ((RENAMES, _REFER), (TRUNCATION, _TRUNCATE), (DEVICES, _IOCTL_DEVICE)):
        if known >= since:
            handled |= right
    return handled


def _allow(ruleset: int, paths: "Iterable[Sequence[str]]", handled: int) -> None:
    """Add a rule for each path. Every start of a process may add hundreds, so objects are reused."""
    rule = ctypes.create_string_buffer(_RULE.size)
    add = bound(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    rights_of: Dict[str, int] = {}
    for path, letters in paths:
        try:
            descriptor = _opened(path)
        except OSError:
            continue
        try:
            rights = rights_of.get(letters)
            if rights is None:
                rights = rights_of[letters] = handled & _rights(letters)
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= _OF_FILES
            if rights:
                _RULE.pack_into(rule, 0, rights, descriptor)
                add()
        finally:
            os.close(descriptor)


def _opened(path: str) -> int:
    """Open a path that contained no links when the host checked it; a link added since would lead elsewhere.

    Raises OSError if the path does not exist, or contains a link.
    """
    if path.startswith("/proc/"):
        return os.open(path, os.O_PATH | os.O_CLOEXEC)  # the kernel's own links, such as /proc/self
    try:
        return syscall(_OPENAT2, -1, os.fsencode(path), _HOW, len(_HOW.raw) - 1)
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.EPERM}:  # an old kernel or a container's filter does not know it
            raise
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if os.readlink(f"/proc/self/fd/{descriptor}") != path:
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return descriptor


def _rights(letters: "Iterable[str]") -> int:
    rights = 0
    for letter in letters:
        rights |= _RIGHTS[letter]
    return rights
