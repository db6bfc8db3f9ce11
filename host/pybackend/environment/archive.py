"""Reading a packed environment: its members in order, every one of them harmless to unpack.

An archive is written by a model's author, and read with the host's rights. So nothing leads out of the directory that it is
unpacked in, nothing is a device, no name is written through a link, and no header makes the host take much memory.
"""

from __future__ import annotations

import gzip
import math
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import IO, BinaryIO, Self, cast

from pybackend.environment.file_tree import FileTree
from pybackend.errors import ModelEnvironmentError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
"""How names of archives end, for messages: what a file is, its first bytes say."""

MOST_MEMBERS = 2_000_000
MOST_UNPACKED_BYTES = 200 * 1024**3
"""Bounds that no environment reaches, and that bombs do."""

_MOST_HEADER_BYTES = 1024 * 1024
"""Of one extended header, which is read into memory at once. Paths are the longest that they hold."""

_MOST_GLOBAL_HEADERS = 64
_MOST_BYTES_BEHIND = 16 * 1024 * 1024
_BLOCK_BYTES = 512
_CHUNK_BYTES = 1024 * 1024
_MOST_ZSTD_WINDOW_BYTES = 128 * 1024 * 1024

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_OTHER_FORMATS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"hsqs": "squashfs", b"7z\xbc\xaf": "7z"}

_EXTENDED = frozenset({tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})


_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError)
"""What reading a damaged archive raises, depending on where it is damaged."""


class MemberKind(Enum):
    """What an archive may hold."""

    FILE = auto()
    DIRECTORY = auto()
    LINK = auto()
    HARD_LINK = auto()


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive, checked.

    Attributes:
        path: below the directory that it is unpacked in.
        kind: what it is.
        size: of a file.
        target: where a link leads, as it is written; the path of an earlier file for a hard link.
        executable: a file that may be executed.
        modified_s: when a file was changed last, in seconds since the epoch: compiled files remember it of their sources.
        content: of a file; to be read before the next member is taken.
    """

    path: str
    kind: MemberKind
    size: int = 0
    target: str = ""
    executable: bool = False
    modified_s: int = 0
    content: Content | None = None


class Content:
    """What is in a file of an archive.

    Args:
        stream: from tarfile.
        broken: makes what is raised where the archive ends too early or is damaged.
    """

    def __init__(self, stream: IO[bytes], broken: Callable[[str], ModelEnvironmentError]) -> None:
        self._stream = stream
        self._broken = broken

    def read(self, size: int) -> bytes:
        """Some of it, nothing at the end.

        Raises:
            ModelEnvironmentError: the archive is broken.
        """
        try:
            return self._stream.read(size)
        except _DAMAGE as error:
            raise self._broken(str(error)) from error


class ArchiveReader:
    """The members of one archive, in one pass.

    Args:
        file: at its start; closed by whoever has opened it.
        source: names it in messages.
    """

    def __init__(self, file: BinaryIO, source: str) -> None:
        self._file = file
        self._source = source
        self._tree = FileTree(self.refusal)
        self.has_ended = False

    def refusal(self, reason: str) -> ModelEnvironmentError:
        """What to raise for an archive that must not be unpacked."""
        return ModelEnvironmentError(f"{self._source} is refused: {reason}")

    def members(self) -> Iterator[Member]:
        """Every member; what has been yielded is harmless, the whole is only at the end.

        Raises:
            ModelEnvironmentError: it is broken, of another format, or not harmless.
        """
        try:
            yield from self._members()
        except _DAMAGE as error:
            raise self._broken(str(error)) from error

    def _members(self) -> Iterator[Member]:
        count, total_bytes = 0, 0
        stream = self._open()
        with tarfile.open(
            fileobj=stream,
            mode="r|",
            bufsize=_CHUNK_BYTES,
            tarinfo=_header_class(self),
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            while (header := tar.next()) is not None:
                count, total_bytes = count + 1, total_bytes + header.size
                if count > MOST_MEMBERS or total_bytes > MOST_UNPACKED_BYTES:
                    raise self.refusal(f"it holds more than {MOST_MEMBERS} files or {MOST_UNPACKED_BYTES >> 30} GiB")
                member = self._member(header, tar)
                if member is not None:
                    yield member
                tar.members = []  # type: ignore[attr-defined]  # it would remember all of them
            if not self.has_ended:
                raise self._broken("it ends in the middle, or a header is damaged")
            _read_rest(stream, self)
        self._tree.check_links()

    def _open(self) -> IO[bytes]:
        start = self._file.read(8)
        self._file.seek(0)
        if start.startswith(_GZIP):
            return cast("IO[bytes]", gzip.GzipFile(fileobj=self._file))
        if start.startswith(_ZSTD):
            return cast("IO[bytes]", _ZstdStream(self._file))
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

    def _member(self, header: tarfile.TarInfo, tar: tarfile.TarFile) -> Member | None:
        path = self._tree.checked(header.name)
        if header.size < 0:
            raise self._broken(f"'{path}' has a negative size")
        if header.isdir():
            self._tree.add_directory(path)
            return Member(path, MemberKind.DIRECTORY) if path else None
        if header.issym():
            self._tree.add_link(path, header.linkname)
            return Member(path, MemberKind.LINK, target=header.linkname)
        if header.islnk():
            target = self._tree.checked(header.linkname)
            self._tree.add_hard_link(path, target)
            return Member(path, MemberKind.HARD_LINK, target=target)
        if not header.isreg() or header.issparse():
            raise self.refusal(f"'{path}' is neither a file nor a directory nor a link (type {header.type!r})")
        self._tree.add_file(path)
        stream = tar.extractfile(header)
        assert stream is not None
        return Member(
            path,
            MemberKind.FILE,
            header.size,
            executable=bool(header.mode & 0o100),
            modified_s=_seconds(header.mtime),
            content=Content(stream, self._broken),
        )


def _seconds(modified: float) -> int:
    """A time that every file system takes."""
    return min(max(int(modified), 0), 2**32) if math.isfinite(modified) else 0


def _header_class(reader: ArchiveReader) -> type[tarfile.TarInfo]:
    """Headers as tarfile reads them, after a look at what they would make it do."""
    global_headers = 0

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            nonlocal global_headers
            if len(buf) == _BLOCK_BYTES and not any(buf):
                reader.has_ended = True
            header = super().frombuf(buf, encoding, errors)
            if header.type == tarfile.XGLTYPE:
                global_headers += 1
            if (
                header.size < 0
                or (header.type in _EXTENDED | {tarfile.XGLTYPE} and header.size > _MOST_HEADER_BYTES)
                or global_headers > _MOST_GLOBAL_HEADERS
            ):
                raise reader.refusal("an extended header is too large")
            if header.type == tarfile.GNUTYPE_SPARSE:
                raise reader.refusal(f"'{header.name}' is a sparse file: pack it without --sparse")
            return header

        def _proc_gnusparse_10(self, *_arguments: object) -> None:
            # tarfile would read a map of any length into memory.
            raise reader.refusal("it has sparse files: pack it without --sparse")

    return Header


class _ZstdStream:
    """What is in a zstd file; complains, as the gzip module does, if there is less than there should be."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor(max_window_size=_MOST_ZSTD_WINDOW_BYTES).stream_reader(
            file, read_size=_CHUNK_BYTES, read_across_frames=True, closefd=False
        )

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            raise EOFError(str(error)) from error


def _read_rest(stream: IO[bytes], reader: ArchiveReader) -> None:
    """Read to the very end, where a compressed file has its checksum; archives end in some blocks of zeros."""
    left = _MOST_BYTES_BEHIND
    while chunk := stream.read(_CHUNK_BYTES):
        left -= len(chunk)
        if left < 0:
            raise reader.refusal("much more follows its end")
