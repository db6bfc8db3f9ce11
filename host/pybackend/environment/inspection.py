"""Inspection of an archive or a directory for people: its contents, and whether this host can use it."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pybackend.author_files.reading import open_regular
from pybackend.environment.archive_key import key_of
from pybackend.environment.hooks import hooks_of
from pybackend.environment.interpreter import Interpreter, check_usable, find_interpreter
from pybackend.environment.manifest import MANIFEST_FILENAME, PackedPackage
from pybackend.environment.provider import cannot_read, check_activate
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
    """Facts about an environment.

    Attributes:
        path: the archive or directory.
        key: key of an archive's content; empty for a directory.
        archive_bytes: size of the archive, 0 for a directory.
        interpreter: its Python, None if it has none.
        hooks: names of the activation hooks that a server runs, in order.
        refusal: why this host cannot use it; empty if it can.
    """

    path: Path
    key: str
    archive_bytes: int
    files: int
    total_bytes: int
    compiled_files: int
    interpreter: Interpreter | None
    packages: tuple[PackedPackage, ...]
    hooks: tuple[str, ...]
    refusal: str

    def to_document(self) -> dict[str, Any]:
        """The same facts as plain values."""
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

    Raises:
        ModelEnvironmentError: it cannot be read, or is an archive that must not be unpacked.
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
