"""Unpacks a checked archive into files below a directory that no other user can write to, and records their hashes."""

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pybackend.environment.archive import ArchiveEntry, ArchiveReader, MemberKind
from pybackend.errors import ErrorCode, ModelEnvironmentError

_CHUNK_BYTES = 1024 * 1024
_DIGEST_BYTES = 16
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_A_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})


class Cancelled(Exception):
    """The environment is no longer needed by the caller."""


@dataclass
class Inventory:
    """Record of the unpacked files."""

    files: dict[str, tuple[int, str]] = field(default_factory=dict)  # size and hash of each file, by path
    links: dict[str, str] = field(default_factory=dict)  # target of each symbolic link, by path

    @property
    def total_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def look_again(self, directory: Path, changed: Iterable[str]) -> None:
        """Record files that were deliberately modified or, if compiled, removed."""
        for path in changed:
            self.files[path] = _facts_of(directory / path)
            folder, _, name = path.rpartition("/")
            if name.endswith(".py"):
                compiled = f"{folder}/__pycache__/{name[:-3]}."
                for other in [other for other in self.files if other.startswith(compiled)]:
                    if not (directory / other).exists():
                        del self.files[other]

    def differences(self, directory: Path, *, contents: bool) -> list[str]:
        """Differences between a directory and this record, one clause per file.

        Args:
            contents: read the files; otherwise only sizes are compared.
        """
        found = []
        for path, (size, digest) in self.files.items():
            try:
                actual = _facts_of(directory / path) if contents else (os.lstat(directory / path).st_size, digest)
            except OSError as error:
                found.append(f"{path}: {error.strerror}")
                continue
            if actual != (size, digest):
                found.append(f"{path}: has {actual[0]} bytes, not {size}" if actual[0] != size else f"{path}: altered")
        for path, target in self.links.items():
            try:
                if os.readlink(directory / path) != target:
                    found.append(f"{path}: leads elsewhere")
            except OSError as error:
                found.append(f"{path}: {error.strerror}")
        return found


def _facts_of(path: Path) -> tuple[int, str]:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    size = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def unpack(
    file: BinaryIO,
    source: str,
    directory: Path,
    cancelled: threading.Event,
    wanted: Callable[[str], bool] | None = None,
) -> Inventory:
    """Unpack an archive.

    Args:
        directory: created by this call; no other user can write below it.
        wanted: true for paths of files to write, None for all; directories and links are always created.

    Raises:
        ModelEnvironmentError: the archive is broken or unsafe, or cannot be written; nothing is left behind.
    """
    done = False
    try:
        directory.mkdir()
    except OSError as error:
        raise cannot_write(source, directory.parent, error) from error
    try:
        room_bytes = shutil.disk_usage(directory).free if wanted is None else None
        inventory = _unpack(
            ArchiveReader(file, source, room_bytes), directory, cancelled, wanted or (lambda _path: True)
        )
        done = True
    except OSError as error:
        if error.errno in _NOT_A_NAME:
            raise ModelEnvironmentError(
                f"{source} is refused: this file system does not accept the name {error.filename!r}"
            ) from error
        raise cannot_write(source, directory.parent, error) from error
    finally:
        if not done:
            shutil.rmtree(directory, ignore_errors=True)
    return inventory


def cannot_write(source: str, cache: Path, error: OSError) -> ModelEnvironmentError:
    """The error for an environment cache that cannot be written."""
    advice = "name a directory that this user can write by --environment-cache-directory"
    if error.errno in _NO_SPACE:
        advice = "`pybackend env prune` removes unused environments, --environment-cache-directory names another place"
    return ModelEnvironmentError(
        f"cannot unpack {source} into {cache}: {error.strerror}; {advice}", ErrorCode.UNAVAILABLE
    )


def _unpack(
    reader: ArchiveReader, directory: Path, cancelled: threading.Event, wanted: Callable[[str], bool]
) -> Inventory:
    inventory = Inventory()
    made = {""}
    directory.chmod(0o755)  # regardless of the umask: models may run as another user
    for member in reader.members():
        if cancelled.is_set():
            raise Cancelled
        _make_directories(directory, member, made)
        path = directory / member.path
        if (
            member.path in inventory.files or member.path in inventory.links
        ):  # the archive has it twice: the last one counts
            path.unlink(missing_ok=True)  # missing if it was not wanted
            inventory.links.pop(member.path, None)
            inventory.files.pop(member.path, None)
        match member.kind:
            case MemberKind.FILE if wanted(member.path):
                inventory.files[member.path] = _write(path, member, cancelled)
            case MemberKind.FILE:
                inventory.files[member.path] = member.size, ""
            case MemberKind.LINK:
                path.symlink_to(member.target)
                inventory.links[member.path] = member.target
            case MemberKind.HARD_LINK:
                if os.path.lexists(directory / member.target):
                    os.link(directory / member.target, path, follow_symlinks=False)
                inventory.files[member.path] = inventory.files[member.target]
    return inventory


def _make_directories(directory: Path, member: ArchiveEntry, made: set[str]) -> None:
    path = member.path if member.kind is MemberKind.DIRECTORY else member.path.rpartition("/")[0]
    missing = []
    while path not in made:
        missing.append(path)
        path = path.rpartition("/")[0]
    for path in reversed(missing):
        (directory / path).mkdir(mode=0o755)
        (directory / path).chmod(0o755)
        made.add(path)


def _write(path: Path, member: ArchiveEntry, cancelled: threading.Event) -> tuple[int, str]:
    assert member.content is not None
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    with open(descriptor, "wb") as file:
        while chunk := member.content.read(_CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if cancelled.is_set():
                raise Cancelled
        file.flush()
        # World-readable, writable for the owner only, without setuid or setgid.
        os.fchmod(descriptor, 0o755 if member.executable else 0o644)
        os.utime(descriptor, (member.modified_s, member.modified_s))
    return size, digest.hexdigest()
