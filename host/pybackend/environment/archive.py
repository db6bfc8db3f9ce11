"""Reads a packed environment: its members in order, each checked to be safe to unpack.

An archive is written by a model's author and read with the host's rights. Therefore no path leads out of the target
directory, devices are refused, no name is written through a link, and no header makes the host allocate much memory.
Paths and link targets are checked in memory before anything is written.
"""

from __future__ import annotations

import errno
import gzip
import io
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from pybackend.environment.tar_entries import Entry, EntryContent, TarReader
from pybackend.errors import ModelEnvironmentError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MOST_LINKS_IN_A_PATH = 40
"""The kernel's limit on links in one path."""

_MOST_PATH_CHARACTERS = 4096

Refusal = Callable[[str], ModelEnvironmentError]


class FileTree:
    """The files created by an archive's members, in order."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal
        self._directories = {""}
        self._files: set[str] = set()
        self._links: dict[str, str] = {}

    def checked(self, name: str) -> str:
        """A member's name without ``./`` and the like; empty for the target directory itself."""
        if name.startswith("/"):
            raise self._refusal(f"Path is absolute: '{name}'")
        if "\0" in name or len(name) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"Path is not a valid file name: {name[:100]!r}")
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise self._refusal(f"Path contains '..': '{name}'")
        return "/".join(parts)

    def add_directory(self, path: str) -> None:
        """Add a directory, which may exist already."""
        self._enter(path)
        if path in self._files or path in self._links:
            raise self._refusal(f"'{path}' is both a directory and something else")
        self._directories.add(path)

    def add_file(self, path: str) -> None:
        """Add a file, which may replace an earlier one."""
        self._enter_leaf(path)
        self._files.add(path)

    def add_link(self, path: str, target: str) -> None:
        """Add a symbolic link. Its target is checked at the end, because it may lead through other links."""
        if target.startswith("/"):
            raise self._refusal(
                f"the link '{path}' leads to an absolute path, '{target}', which is not part of the environment. "
                "A virtual environment is served as a directory, or packed by `pybackend pack DIRECTORY`"
            )
        if not target or "\0" in target or len(target) > _MOST_PATH_CHARACTERS:
            raise self._refusal(f"the link '{path}' has an empty target")
        self._enter_leaf(path)
        self._links[path] = target

    def add_hard_link(self, path: str, target: str) -> None:
        """Add a second name of an earlier file."""
        if target not in self._files or target == path:
            raise self._refusal(f"'{path}' is a hard link to '{target}', which is not an earlier file")
        self._enter_leaf(path)
        self._files.add(path)

    def _enter_leaf(self, path: str) -> None:
        self._enter(path)
        if path in self._directories:
            raise self._refusal(f"'{path or '.'}' is both a directory and something else")
        self._files.discard(path)
        self._links.pop(path, None)

    def _enter(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        while parent not in self._directories:
            if parent in self._links:
                raise self._refusal(f"Path leads through a symbolic link: '{path}'")
            if parent in self._files:
                raise self._refusal(f"'{parent}' is both a directory and something else")
            self._directories.add(parent)
            parent = parent.rpartition("/")[0]

    def check_links(self) -> None:
        """Follow every link."""
        for path, target in self._links.items():
            if self._leads_out(path):
                raise self._refusal(f"the link '{path}' leads out of the environment, to '{target}'")

    def _leads_out(self, path: str) -> bool:
        at: list[str] = []
        ahead = path.split("/")[::-1]
        links = 0
        while ahead:
            part = ahead.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                if not at:
                    return True
                at.pop()
                continue
            at.append(part)
            target = self._links.get("/".join(at))
            if target is not None:
                links += 1
                if links > _MOST_LINKS_IN_A_PATH:
                    return False  # a dangling link, or one that loops
                at.pop()
                ahead.extend(target.split("/")[::-1])
        return False


SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
"""Suffixes of archives, for messages. The format is detected from a file's first bytes."""

MOST_FACTOR = 100
FREE_BYTES = 1024**3
"""Maximum expansion of archives above a minimum size. Environments expand by a factor of 3 to 10."""

MOST_MEMBERS = 2_000_000
MOST_UNPACKED_BYTES = 200 * 1024**3
"""Limits that no environment reaches, but that archive bombs exceed."""

_MOST_BYTES_BEHIND = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_MOST_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER_FORMATS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"hsqs": "squashfs", b"7z\xbc\xaf": "7z"}

_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)
"""Errors raised while reading a damaged archive, depending on the position of the damage."""


class MemberKind(Enum):
    """Kinds of archive members."""

    FILE = auto()
    DIRECTORY = auto()
    LINK = auto()
    HARD_LINK = auto()


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One checked archive entry."""

    path: str  # relative to the target directory
    kind: MemberKind
    size: int = 0
    target: str = ""  # for a link, its target as written; for a hard link, the path of an earlier file
    executable: bool = False
    # modification time of a file in seconds since the epoch; compiled files record that of their sources
    modified_s: int = 0
    content: Content | None = None  # for a file; must be read before the next member is requested


class Content:
    """The content of a file in an archive."""

    def __init__(self, stream: EntryContent, broken: Callable[[str], ModelEnvironmentError]) -> None:
        self._stream = stream
        self._broken = broken

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; empty at the end."""
        try:
            return self._stream.read(size)
        except _DAMAGE as error:
            raise self._broken(str(error)) from error


class ArchiveReader:
    """The members of one archive, in one pass.

    Args:
        file: positioned at its start; closed by the caller.
        room_bytes: disk space for the unpacked files, None if nothing is unpacked.
    """

    def __init__(self, file: BinaryIO, source: str, room_bytes: int | None = None) -> None:
        self._file = file
        self._source = source
        self._room_bytes = room_bytes
        self._tree = FileTree(self.refusal)

    def refusal(self, reason: str) -> ModelEnvironmentError:
        """The error for an archive that must not be unpacked."""
        return ModelEnvironmentError(f"{self._source} is refused: {reason}")

    def members(self) -> Iterator[ArchiveEntry]:
        """All members. Each yielded member is safe; the archive as a whole is valid only after the last.

        Raises ModelEnvironmentError if the archive is broken, of an unsupported format, or unsafe.
        """
        try:
            yield from self._members()
        except _DAMAGE as error:
            raise self._broken(str(error)) from error

    def _members(self) -> Iterator[ArchiveEntry]:
        count, total_bytes = 0, 0
        packed_bytes = os.fstat(self._file.fileno()).st_size
        most_bytes = min(MOST_UNPACKED_BYTES, FREE_BYTES + MOST_FACTOR * packed_bytes)
        stream = self._open()
        tar = TarReader(stream, self.refusal)
        for entry in tar.entries():
            count, total_bytes = count + 1, total_bytes + entry.size
            end = tar.position + entry.size  # headers count too: they may be as many as they like
            if count > MOST_MEMBERS or end > MOST_UNPACKED_BYTES:
                raise self.refusal(f"it holds more than {MOST_MEMBERS} files or {MOST_UNPACKED_BYTES >> 30} GiB")
            if end > most_bytes:
                raise self.refusal(
                    f"it has {packed_bytes} bytes and unpacks to more than {most_bytes}, which is "
                    f"{MOST_FACTOR} times that and {FREE_BYTES >> 30} GiB"
                )
            if self._room_bytes is not None and total_bytes > self._room_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            member = self._member(entry)
            if member is not None:
                yield member
        left = _MOST_BYTES_BEHIND
        while chunk := stream.read(_CHUNK_BYTES):  # to the very end, where a compressed file has its checksum
            left -= len(chunk)
            if left < 0:
                raise self.refusal("too much data follows its end")
        self._tree.check_links()

    def _open(self) -> IO[bytes]:
        start = self._file.read(8)
        self._file.seek(0)
        if start.startswith(_GZIP):
            return cast("IO[bytes]", gzip.GzipFile(fileobj=self._file))
        if start.startswith(_ZSTD):
            return io.BufferedReader(_ZstdStream(self._file), _CHUNK_BYTES)
        for magic, name in _OTHER_FORMATS.items():
            if start.startswith(magic):
                raise ModelEnvironmentError(
                    f"{self._source} is a {name} file: an environment is a directory, or an archive of the kind "
                    f"{', '.join(SUFFIXES)}"
                )
        return self._file

    def _broken(self, reason: str) -> ModelEnvironmentError:
        size = os.fstat(self._file.fileno()).st_size
        return ModelEnvironmentError(
            f"{self._source} ({size} bytes) is broken or truncated ({reason}): copy it again, or pack it again"
        )

    def _member(self, entry: Entry) -> ArchiveEntry | None:
        path = self._tree.checked(entry.name)
        match entry.kind:
            case tarfile.DIRTYPE:
                self._tree.add_directory(path)
                return ArchiveEntry(path, MemberKind.DIRECTORY) if path else None
            case tarfile.SYMTYPE:
                self._tree.add_link(path, entry.target)
                return ArchiveEntry(path, MemberKind.LINK, target=entry.target)
            case tarfile.LNKTYPE:
                target = self._tree.checked(entry.target)
                self._tree.add_hard_link(path, target)
                return ArchiveEntry(path, MemberKind.HARD_LINK, target=target)
            case tarfile.REGTYPE:
                self._tree.add_file(path)
                return ArchiveEntry(
                    path,
                    MemberKind.FILE,
                    entry.size,
                    executable=bool(entry.mode & 0o100),
                    # One that every file system accepts.
                    modified_s=min(max(int(entry.modified_s), 0), 2**32) if math.isfinite(entry.modified_s) else 0,
                    content=Content(entry.content, self._broken),
                )
        raise self.refusal(f"'{path}' is neither a file nor a directory nor a link (type {entry.kind!r})")


class _ZstdStream(io.RawIOBase):
    """The content of a zstd file. Raises an error for a truncated stream, as the gzip module does."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MOST_ZSTD_WINDOW_BYTES).stream_reader(
            file, read_size=_CHUNK_BYTES, read_across_frames=True, closefd=False
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            return self._stream.readinto(buffer)
        except self._error as error:
            raise EOFError(str(error)) from error
