"""What a binary needs to run, read from its header: a host must not start foreign code to learn that it cannot run here."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF"
_PT_INTERP = 3
_MOST_HEADERS = 1024
_MOST_BYTES = 256 * 1024 * 1024

_MACHINES = {
    3: "i686",
    8: "mips",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
"""Processors by their number in the header, named as ``uname -m`` does."""

_GLIBC_NAME = b"\0GLIBC_"
_GLIBC = re.compile(rb"\0GLIBC_(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?\0")
_LONGEST_NAME = 32

_RELATIVE = b"$ORIGIN"
_PYTHON_LIBRARY = b"\0libpython3"


@dataclass(frozen=True)
class Binary:
    """A program or a shared library.

    Attributes:
        machine: the processor that it is for, as ``uname -m`` names it.
        loader: the program that loads it, such as ``/lib64/ld-linux-x86-64.so.2``; empty for a library.
        glibc: the oldest glibc that it runs with, None if it needs none.
        lacks_way: it needs Python's library, and does not say where to find it relative to itself.
    """

    machine: str
    loader: str = ""
    glibc: tuple[int, int] | None = None
    lacks_way: bool = False


def read_binary(path: Path) -> Binary | None:
    """What a file says that it needs, None if it is no binary of this system, or damaged.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        file.seek(0)
        content = file.read(_MOST_BYTES)
    try:
        return _read(content)
    except (struct.error, IndexError, ValueError, OverflowError):
        return None


def _read(content: bytes) -> Binary:
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    (machine,) = struct.unpack_from(f"{order}H", content, 18)
    if wide:
        (table,) = struct.unpack_from(f"{order}Q", content, 32)
        entry_size, count = struct.unpack_from(f"{order}HH", content, 54)
    else:
        (table,) = struct.unpack_from(f"{order}I", content, 28)
        entry_size, count = struct.unpack_from(f"{order}HH", content, 42)
    loader = ""
    for number in range(min(count, _MOST_HEADERS)):
        entry = table + number * entry_size
        (kind,) = struct.unpack_from(f"{order}I", content, entry)
        if kind == _PT_INTERP:
            offset, size = (
                struct.unpack_from(f"{order}Q16xQ", content, entry + 8)
                if wide
                else struct.unpack_from(f"{order}I8xI", content, entry + 4)
            )
            loader = content[offset : offset + min(size, 4096)].rstrip(b"\0").decode("utf-8", "replace")
    lacks_way = content.find(_PYTHON_LIBRARY) >= 0 and content.find(_RELATIVE) < 0
    return Binary(_MACHINES.get(machine, f"processor number {machine}"), loader, _needed_glibc(content), lacks_way)


def _needed_glibc(content: bytes) -> tuple[int, int] | None:
    # The names of the versions that a binary needs stand in its table of strings: no need to find that table. Libraries are
    # large, and a search for fixed bytes is many times faster than one for a pattern.
    found = []
    place = content.find(_GLIBC_NAME)
    while place >= 0:
        match = _GLIBC.match(content[place : place + _LONGEST_NAME])
        if match:
            found.append((int(match[1]), int(match[2])))
        place = content.find(_GLIBC_NAME, place + 1)
    return max(found, default=None)
