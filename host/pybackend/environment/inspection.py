"""Looks at an archive or a directory: its contents for people, and whether this host can use it."""

import os
import re
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pybackend.author_files import open_regular
from pybackend.environment.archive import ArchiveReader, MemberKind
from pybackend.environment.cache import key_of
from pybackend.environment.hooks import hooks_of
from pybackend.environment.interpreter import OLDEST_PYTHON, Interpreter, check_usable, find_interpreter, patch_level
from pybackend.environment.manifest import MANIFEST_FILENAME, PackedPackage
from pybackend.environment.provider import cannot_read, canonical_path, check_activate, not_packed
from pybackend.environment.specification import is_specification
from pybackend.environment.unpacking import unpack
from pybackend.errors import ModelEnvironmentError

# Files of an archive that are read; all others are only counted.
_LOOKED_AT = re.compile(
    rf"{re.escape(MANIFEST_FILENAME)}|pyvenv\.cfg|bin/(?:python|pypy|graalpy)[^/]*|bin/activate|conda-meta/[^/]+\.json"
    r"|etc/conda/activate\.d/[^/]+\.sh|lib/libpython3[^/]*|include/python3[^/]*/patchlevel\.h"
    r"|lib/python3[^/]*/site-packages/(?:[^/]+\.dist-info/METADATA|[^/]+\.pth|numpy/version\.py|numpy/_?core/_multiarray[^/]*)"
)


@dataclass(frozen=True)
class Inspection:
    """Facts about an environment."""

    path: Path
    key: str  # key of an archive's content; empty for a directory
    archive_bytes: int  # size of the archive, 0 for a directory
    files: int
    total_bytes: int
    compiled_files: int
    interpreter: Interpreter | None
    packages: tuple[PackedPackage, ...]
    hooks: tuple[str, ...]
    refusal: str  # why this host cannot use it; empty if it can

    def to_document(self) -> dict[str, Any]:
        interpreter = self.interpreter
        manifest = interpreter.manifest if interpreter else None
        return {
            "path": str(self.path),
            "key": self.key,
            "archive_bytes": self.archive_bytes,
            "files": self.files,
            "total_bytes": self.total_bytes,
            "compiled_files": self.compiled_files,
            "python": interpreter.version if interpreter else "",
            "implementation": interpreter.implementation if interpreter else "",
            "free_threaded": bool(interpreter and interpreter.free_threaded),
            "numpy": interpreter.numpy if interpreter else None,
            "platform": interpreter.platform if interpreter else "",
            "libc": manifest.libc if manifest else "",
            "created_by": manifest.created_by if manifest else "",
            "variables": dict(manifest.variables) if manifest else {},
            "hooks": list(self.hooks),
            "packages": [asdict(package) for package in self.packages],
            "usable": not self.refusal,
            "refusal": self.refusal,
        }


def inspect_environment(path: Path) -> Inspection:
    """Inspect an archive, by reading it to its end, or a directory.

    Raises ModelEnvironmentError if it cannot be read, or is an archive that must not be unpacked.
    """
    never = threading.Event()
    try:
        if path.is_dir():
            files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
            return _inspected(path, path, files, sum(os.lstat(file).st_size for file in files), "", 0)
        if path.exists() and not path.is_file():
            raise ModelEnvironmentError(f"{path} is neither a directory nor an archive")  # a device may never end
        with open_regular(path) as file, tempfile.TemporaryDirectory(prefix="pybackend-") as scratch:
            key = key_of(file, never)
            prefix = Path(scratch) / "environment"
            inventory = unpack(file, str(path), prefix, never, lambda name: _LOOKED_AT.fullmatch(name) is not None)
            size = os.fstat(file.fileno()).st_size
            return _inspected(path, prefix, list(inventory.files), inventory.total_bytes, key, size)
    except OSError as error:
        raise cannot_read(path, error) from error


def _inspected(path: Path, prefix: Path, files: list[str], total_bytes: int, key: str, size: int) -> Inspection:
    interpreter, refusal = None, ""
    packages: tuple[PackedPackage, ...] = ()
    try:
        check_activate(prefix, path)
        interpreter = find_interpreter(prefix, str(path))
        packages = tuple(interpreter.packages())
        check_usable(interpreter, str(path))
    except ModelEnvironmentError as error:
        refusal = error.message.replace(f"{prefix}/", "") if key else error.message  # an archive has no prefix yet
    compiled = sum(name.endswith(".pyc") for name in files)
    manifest = interpreter.manifest if interpreter else None
    hooks = tuple(hook.name for hook in hooks_of(prefix, has_manifest=manifest is not None))
    return Inspection(path, key, size, len(files), total_bytes, compiled, interpreter, packages, hooks, refusal)


_PROGRAMS = frozenset({"bin/python", "bin/python3"})
_LIBRARY = re.compile(r"lib/python(3\.\d+)t?/")
_HEADER = re.compile(r"include/python3\.\d+t?/patchlevel\.h")
_MOST_HEADER_BYTES = 64 * 1024
_MODULE = re.compile(r"lib/python3\.\d+t?/(?:site|dist)-packages/([^/.]+)(?:/|\.py$|\.[^/]*\.so$|$)")
_LEADS_ELSEWHERE = re.compile(r"lib/python3\.\d+t?/(?:site|dist)-packages/[^/]+\.(?:pth|egg-link)")


class Survey(NamedTuple):
    """The result of a look at an environment."""

    python: str  # the version of its Python, such as ``3.12.1``; empty if only unpacking would tell
    modules: frozenset[str] | None  # the names of its installed modules; None if some may lie elsewhere


def survey(path: Path, *, packs_lists: bool) -> Survey:
    """Check that an environment exists, can be read and looks like one. Blocking."""
    canonical = canonical_path(path)
    try:
        if canonical.is_dir():
            source = f"the environment {path}"
            check_activate(canonical, path)
            interpreter = find_interpreter(canonical, source)
            check_usable(interpreter, source)
            names = [f"{each.relative_to(canonical)}" for each in canonical.glob("lib/python3*/*-packages/*")]
            elsewhere = (canonical / "pyvenv.cfg").is_file() and "include-system-site-packages = true" in (
                canonical / "pyvenv.cfg"
            ).read_text(errors="replace")
            return Survey(interpreter.version, None if elsewhere else _modules(names))
        if not canonical.is_file():
            raise ModelEnvironmentError(f"the environment {path} is neither a directory nor an archive")
        if is_specification(canonical):
            if not packs_lists:
                raise not_packed(path)
            canonical.open("rb").close()
            return Survey("", None)
        with open_regular(canonical) as file:
            return _python_of_archive(file, path)
    except OSError as error:
        raise cannot_read(path, error) from error


def _modules(names: Iterable[str]) -> frozenset[str] | None:
    found = set()
    for name in names:
        if _LEADS_ELSEWHERE.fullmatch(name) and not name.endswith("/distutils-precedence.pth"):
            return None
        module = _MODULE.match(name)
        if module:
            found.add(module[1])
    return frozenset(found)


def _python_of_archive(file: BinaryIO, path: Path) -> Survey:
    """Read an archive to its end, and nothing onto the disk."""
    has_python, library, version = False, "", ""
    names = []
    for member in ArchiveReader(file, str(path)).members():
        names.append(member.path)
        has_python = has_python or (member.path in _PROGRAMS and member.kind is not MemberKind.DIRECTORY)
        found = _LIBRARY.match(member.path)
        if found:
            library = found[1]
        if member.content is not None and _HEADER.fullmatch(member.path):
            version = patch_level(member.content.read(_MOST_HEADER_BYTES).decode("utf-8", "replace")) or version
    if not has_python:
        raise ModelEnvironmentError(
            f"the environment {path} has no Python that this host could start: there is no bin/python in it"
        )
    version = version or library
    if version and tuple(map(int, version.split(".")[:2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise ModelEnvironmentError(
            f"the environment {path} has Python {version}, models of this host run on CPython {oldest} and newer"
        )
    return Survey(version, _modules(names))
