"""Makes the files of an environment independent of their directory, with conda-pack.

In every file that contains the environment's directory, conda-pack makes paths relative where it can, and lists the
rest in ``bin/conda-unpack``; unpacking writes the new directory there. This works for conda environments, and equally
for a copied interpreter with wheels.
"""

import json
import mmap
import os
import posixpath
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pybackend_tools.pack.contents import Contents, PackedFile, file_of, file_with, walk
from pybackend_tools.pack.errors import UnpackableError

PLACEHOLDER = "/opt/where-this-environment-was-packed"
"""Fixed text that replaces a directory whose name differs in each pack."""

_LONG_SHEBANG = re.compile(rb"#!/usr/bin/env (python[\w.]*) +([^\r\n]*\S)")
_NOT_PACKED = ("CACHEDIR.TAG", ".condarc")
"""A marker that makes other tools treat the directory as a cache, and settings of the absent conda."""


class _Collector:
    """Replaces the archive that conda-pack would write to."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self.last_data: bytes | None = None

    def add(self, source: str, target: str) -> None:
        self.last_data = None
        self._contents.add(file_of(target, source))

    def add_bytes(self, source: str, data: bytes, target: str) -> None:
        self.last_data = data
        if target.startswith("conda-meta/"):
            data = _without_accidents(data)
        executable = bool(os.stat(source).st_mode & 0o111)
        self._contents.add(file_with(target, _with_working_options(data), executable=executable))


def _without_accidents(record: bytes) -> bytes:
    """Remove details that differ between packs: hashes of files with the directory in them are invalid elsewhere."""
    document = json.loads(record)
    document.pop("indexed_timestamp", None)  # time when the channel was indexed
    for path in (document.get("paths_data") or {}).get("paths", ()):
        path.pop("sha256_in_prefix", None)
        if "entry_point" in path.get("path_type", ""):
            path.pop("sha256", None)
            path.pop("size_in_bytes", None)
    return json.dumps(document, indent=True, sort_keys=True).encode()


def _with_working_options(data: bytes) -> bytes:
    """Fix shebang lines: without -S, Linux passes everything after /usr/bin/env as a single word."""
    return (
        _LONG_SHEBANG.sub(rb"#!/usr/bin/env -S \1 \2", data, count=1) if data.startswith(b"#!/usr/bin/env ") else data
    )


def relocate_tree(prefix: Path) -> tuple[Contents, set[str]]:
    """The files of a directory that is not a conda environment, and the names of those that will be rewritten."""
    from conda_pack.core import File

    return _relocate(prefix, [File(path, name, is_conda=False, file_mode=None) for name, path in walk(prefix)])


def relocate_conda(prefix: Path, warn: Callable[[str], None]) -> tuple[Contents, set[str]]:
    """The files of a conda environment, and the names of those that will be rewritten."""
    from conda_pack import CondaEnv, CondaPackException

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # A pip section with another version of a conda package removes files listed by conda.
            environment = CondaEnv.from_prefix(str(prefix), ignore_missing_files=True)
        except CondaPackException as error:
            raise UnpackableError(f"{prefix} cannot be packed: {' '.join(str(error).split())}") from None
        except (KeyError, ValueError, TypeError) as error:
            raise UnpackableError(
                f"{prefix} is a damaged conda environment: its conda-meta is unreadable ({error!r})"
            ) from None
    for warning in caught:
        warn(_short(str(warning.message)))
    return _relocate(prefix, [_as_it_lies(prefix, file) for file in environment.files])


def _short(message: str) -> str:
    if "without entries in the package cache" in message:
        return (
            "packages of this environment are no longer in conda's cache: files that contain its directory are found "
            "by a search, which misses those in binaries"
        )
    return " ".join(message.split())


def _as_it_lies(prefix: Path, file: Any) -> Any:
    """conda-pack takes files from conda's cache; pip or a user may have changed the environment's own since."""
    from conda_pack.core import File
    from conda_pack.prefixes import replace_prefix

    own = prefix / file.target
    if not file.is_conda or str(own) == file.source or not own.is_file() or own.is_symlink():
        return file
    if file.file_mode not in {"text", "binary"}:
        return File(str(own), file.target, file.is_conda, file.file_mode, file.prefix_placeholder)
    with open(file.source, "rb") as cached:
        try:
            installed = replace_prefix(cached.read(), file.file_mode, file.prefix_placeholder, str(prefix))
        except ValueError:
            return file
    if own.read_bytes() == installed:
        return file
    return File(str(own), file.target, is_conda=False, file_mode="unknown")


def _relocate(prefix: Path, files: list[Any]) -> tuple[Contents, set[str]]:
    from conda_pack.core import Packer

    contents = Contents()
    collector = _Collector(contents)

    class CollectingPacker(Packer):  # type: ignore[misc]
        def _write_text_file(self, fpath: str, ftext: str, executable: bool = False) -> None:
            # Not through a temporary file, which would be gone on return.
            contents.add(file_with(fpath, ftext.encode("utf-8", "surrogateescape"), executable=executable))

    packer = CollectingPacker(str(prefix), collector)
    for file in files:
        if file.target.endswith(".pyc") or file.target in _NOT_PACKED or file.target.startswith(".pack-"):
            continue
        if file.file_mode in {None, "unknown"} and not file.target.startswith("conda-meta/"):
            # Most files do not contain the directory, and are not read into memory.
            file.file_mode = "unknown" if _names(file.source, os.fsencode(prefix)) else None
        known = len(packer.prefixes)
        packer.add(file)
        if len(packer.prefixes) > known and collector.last_data is not None:
            _, placeholder, mode = packer.prefixes.pop()
            if os.fsencode(placeholder) not in collector.last_data:
                continue
            if placeholder == str(prefix) and mode == "text":
                placeholder = PLACEHOLDER
                data = collector.last_data.replace(os.fsencode(prefix), PLACEHOLDER.encode())
                collector.add_bytes(file.source, data, file.target)
            packer.prefixes.append((file.target, placeholder, mode))
    packer.prefixes.sort()
    packer.finish()
    _forget_old_hashes(contents)
    return contents, {name for name, _, _ in packer.prefixes}


def _forget_old_hashes(contents: Contents) -> None:
    """Remove the hashes of rewritten files from wheels' records: they are wrong, and differ between packs."""
    for record in [file for file in contents.files.values() if file.name.endswith(".dist-info/RECORD")]:
        packages = posixpath.dirname(posixpath.dirname(record.name))
        lines = b"".join(record.chunks()).decode("utf-8", "surrogateescape").splitlines(keepends=True)
        kept = [_without_hash(line, packages, contents) for line in lines]
        if kept != lines:
            contents.add(file_with(record.name, "".join(kept).encode("utf-8", "surrogateescape")))


def _without_hash(line: str, packages: str, contents: Contents) -> str:
    name, *rest = line.rsplit(",", 2)
    file = contents.files.get(posixpath.normpath(posixpath.join(packages, name.strip('"'))))
    return f"{name},,\n" if len(rest) == 2 and file is not None and file.data is not None else line


def _names(path: str, prefix: bytes) -> bool:
    if os.path.islink(path) or not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(prefix) >= 0


def sources_to_compile(contents: Contents, rewritten: set[str]) -> Iterator[PackedFile]:
    """Modules whose compiled files belong in the archive.

    Rewritten modules are excluded: their compiled files would keep the old directory, and nothing would notice.
    """
    for file in contents.sorted():
        if (
            file.name.endswith(".py")
            and "/python3." in f"/{file.name}"
            and file.name not in rewritten
            and file.path is not None
        ):
            yield file
