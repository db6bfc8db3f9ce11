"""Requirements of a binary, read from its ELF header: the host must not run foreign code to learn that it cannot."""

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from pybackend.author_files import open_regular

_MAGIC = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_STRTAB, _DT_STRSZ = 0, 5, 10
_MOST_HEADERS = 1024
_MOST_STRINGS_BYTES = 64 * 1024 * 1024

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
"""Processors by their number in the header, named as in ``uname -m``."""

_GLIBC = re.compile(rb"\0GLIBC_(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?(?=\0)")
_RELATIVE = b"$ORIGIN"
_PYTHON_LIBRARY = b"\0libpython3"


@dataclass(frozen=True)
class Binary:
    """A program or a shared library."""

    machine: str
    loader: str = ""  # its dynamic loader, such as ``/lib64/ld-linux-x86-64.so.2``; empty for a library
    glibc: tuple[int, int] | None = None  # the oldest glibc that it runs with, None if it needs none
    lacks_relative_rpath: bool = False  # it needs Python's library but has no relative path to it


def read_binary(path: Path) -> Binary | None:
    """The requirements of a file, None if it is damaged or not a binary of this system."""
    with open_regular(path) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _read(content)
            except (struct.error, IndexError, ValueError, OverflowError):
                return None


@dataclass(frozen=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def _read(content: mmap.mmap) -> Binary:
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    (machine,) = struct.unpack_from(f"{order}H", content, 18)
    segments = _segments(content, order, wide=wide)
    loader = next((segment for segment in segments if segment.kind == _PT_INTERP), None)
    strings = b"\0" + _strings(content, segments, order, wide=wide) + b"\0"
    return Binary(
        machine=_MACHINES.get(machine, f"processor number {machine}"),
        loader="" if loader is None else _text(content, loader),
        glibc=max(((int(match[1]), int(match[2])) for match in _GLIBC.finditer(strings)), default=None),
        lacks_relative_rpath=_PYTHON_LIBRARY in strings and _RELATIVE not in strings,
    )


def _segments(content: mmap.mmap, order: str, *, wide: bool) -> list[_Segment]:
    if wide:
        (table,) = struct.unpack_from(f"{order}Q", content, 32)
        entry_size, count = struct.unpack_from(f"{order}HH", content, 54)
    else:
        (table,) = struct.unpack_from(f"{order}I", content, 28)
        entry_size, count = struct.unpack_from(f"{order}HH", content, 42)
    layout = struct.Struct(f"{order}I4xQQ8xQ" if wide else f"{order}III4xI")
    places = range(table, table + entry_size * min(count, _MOST_HEADERS), entry_size or 1)
    return [_Segment(*layout.unpack_from(content, place)) for place in places]


def _text(content: mmap.mmap, segment: _Segment) -> str:
    return content[segment.offset : segment.offset + min(segment.size, 4096)].rstrip(b"\0").decode("utf-8", "replace")


def _strings(content: mmap.mmap, segments: list[_Segment], order: str, *, wide: bool) -> bytes:
    """The dynamic linker's string table: libraries, search paths, versions. Empty if statically linked."""
    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return b""
    layout = struct.Struct(f"{order}QQ" if wide else f"{order}II")
    found = {}
    for place in range(dynamic.offset, dynamic.offset + dynamic.size, layout.size):
        tag, value = layout.unpack_from(content, place)
        if tag == _DT_NULL:
            break
        found[tag] = value
    address, size = found.get(_DT_STRTAB, 0), min(found.get(_DT_STRSZ, 0), _MOST_STRINGS_BYTES)
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            start = segment.offset + address - segment.address
            return content[start : start + size]
    return b""
