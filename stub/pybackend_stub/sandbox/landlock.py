"""Landlock: which files this process and all that it starts may reach, enforced by the kernel without any privilege.

What a rule allows holds for everything below its path; what no rule allows is denied, with EACCES. Each kernel handles what
its version of Landlock knows: an older one watches less, which the caller reports.
"""

import ctypes
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
"""Rights that a rule for something else than a directory can give."""

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

_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

RENAMES, TRUNCATION, NETWORK, DEVICES, SCOPES = 2, 3, 4, 5, 6
"""The versions from which on Landlock knows these."""


def version() -> int:
    """The kernel's version of Landlock, 0 if it has none, or if something around this process forbids it."""
    try:
        return syscall(_CREATE_RULESET, None, 0, _VERSION_OF_KERNEL)
    except OSError:
        return 0


def restrict(known: int, paths: "Iterable[Sequence[str]]", network: bool) -> None:
    """From now on only these paths are reached, and only processes of this domain are signalled or looked into.

    Args:
        known: the kernel's :func:`version`.
        paths: with the letters of :mod:`pybackend_wire.confinement`; those that are not there are left out.
        network: TCP may be used.

    Raises:
        OSError: the kernel refuses.
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
    """Add a rule for each path. There may be hundreds, at every start of a process: nothing is made twice."""
    rule = ctypes.create_string_buffer(_RULE.size)
    add = bound(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    rights_of: Dict[str, int] = {}
    for path, letters in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
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


def _rights(letters: "Iterable[str]") -> int:
    rights = 0
    for letter in letters:
        rights |= _RIGHTS[letter]
    return rights
