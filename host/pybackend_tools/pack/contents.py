"""The contents of an archive: every file of an environment with its final name, content and mode."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.environment.elf import read_binary

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One file or link."""

    name: str
    size: int
    mode: int  # executable or not; no other permission is kept
    path: str | None = None  # file with its content, None if it is in ``data``
    data: bytes | None = None  # its content, None if it is in a file
    link: str | None = None  # target of a link, None for a file

    def chunks(self) -> Iterator[bytes]:
        """The file's content."""
        if self.path is None:
            yield self.data or b""
            return
        left = self.size
        with open(self.path, "rb", buffering=0) as file:
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(0, "the file was truncated while it was being packed", self.path)
                left -= len(chunk)
                yield chunk


def file_of(name: str, path: str) -> PackedFile | None:
    """A file or link on disk; None for a directory, or a type that archives cannot hold."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return PackedFile(name, 0, 0o777, link=os.readlink(path))
    if not stat.S_ISREG(status.st_mode):
        return None
    return PackedFile(name, status.st_size, _mode(status.st_mode), path=path)


def file_with(name: str, data: bytes, *, executable: bool = False) -> PackedFile:
    """A file with its content in memory."""
    return PackedFile(name, len(data), 0o755 if executable else 0o644, data=data)


def _mode(mode: int) -> int:
    # Readable for all users, because a model may run as another one. Other permissions do not apply elsewhere.
    return 0o755 if mode & 0o111 else 0o644


@dataclass
class Contents:
    """All files of an archive, by name."""

    files: dict[str, PackedFile] = field(default_factory=dict)

    def add(self, file: PackedFile | None) -> None:
        """Add a file, replacing an earlier one of that name."""
        if file is not None:
            self.files[file.name] = file

    def sorted(self) -> list[PackedFile]:
        """The files in archive order, which is the same for the same files."""
        return [self.files[name] for name in sorted(self.files)]

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def digest(self, threads: int) -> str:
        """A hash of names, modes, links and content."""
        files = self.sorted()
        whole = hashlib.blake2b(digest_size=32)
        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="hash") as pool:
            for file, content in zip(files, pool.map(_digest, files, chunksize=16), strict=True):
                whole.update(
                    f"{file.name}\0{file.mode:o}\0{file.link or ''}\0{file.size}\0".encode("utf-8", "surrogateescape")
                )
                whole.update(content)
        return f"blake2b:{whole.hexdigest()}"

    def oldest_libc(self) -> str:
        """The oldest glibc that all binaries run with, such as ``glibc 2.28``; empty if they need none."""
        versions = (
            binary.glibc
            for file in self.files.values()
            if file.path is not None and (file.mode & 0o111 or ".so" in file.name) and file.size
            if (binary := read_binary(Path(file.path))) is not None and binary.glibc is not None
        )
        newest = max(versions, default=None)
        return "" if newest is None else f"glibc {newest[0]}.{newest[1]}"


def _digest(file: PackedFile) -> bytes:
    content = hashlib.blake2b(digest_size=32)
    for chunk in file.chunks():
        content.update(chunk)
    return content.digest()


def walk(prefix: Path, left_out: Iterable[str] = ()) -> Iterator[tuple[str, str]]:
    """Names and paths of all files and links below a directory, in order.

    ``left_out``: directories below it to skip.
    """
    excluded = {str(prefix / name) for name in left_out}
    for directory, directories, files in os.walk(prefix):
        directories[:] = sorted(name for name in directories if os.path.join(directory, name) not in excluded)
        for name in sorted(files) + [name for name in directories if os.path.islink(os.path.join(directory, name))]:
            path = os.path.join(directory, name)
            yield os.path.relpath(path, prefix), path
