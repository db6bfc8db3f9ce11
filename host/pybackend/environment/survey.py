"""Checks an environment as far as that is possible without unpacking it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from pybackend.author_files.reading import open_regular
from pybackend.environment.archive import ArchiveReader, MemberKind
from pybackend.environment.interpreter import OLDEST_PYTHON, check_usable, find_interpreter, patch_level
from pybackend.environment.provider import cannot_read, canonical_path, check_activate, not_packed
from pybackend.environment.specification import is_specification
from pybackend.errors import ModelEnvironmentError

_PROGRAMS = frozenset({"bin/python", "bin/python3"})
_LIBRARY = re.compile(r"lib/python(3\.\d+)t?/")
_HEADER = re.compile(r"include/python3\.\d+t?/patchlevel\.h")
_MOST_HEADER_BYTES = 64 * 1024


def survey(path: Path, *, packs_lists: bool) -> str:
    """Check that an environment exists, can be read and looks like one. Blocking.

    Args:
        path: from :func:`pybackend.environment.provider.environment_path`.
        packs_lists: lists of packages are packed when models are loaded.

    Returns:
        The version of its Python, such as ``3.12.1``; empty if only unpacking would tell.

    Raises:
        ModelEnvironmentError: it cannot be used.
    """
    canonical = canonical_path(path)
    try:
        if canonical.is_dir():
            source = f"the environment {path}"
            check_activate(canonical, path)
            interpreter = find_interpreter(canonical, source)
            check_usable(interpreter, source)
            return interpreter.version
        if not canonical.is_file():
            raise ModelEnvironmentError(f"the environment {path} is neither a directory nor an archive")
        if is_specification(canonical):
            if not packs_lists:
                raise not_packed(path)
            canonical.open("rb").close()
            return ""
        with open_regular(canonical) as file:
            return _python_of_archive(file, path)
    except OSError as error:
        raise cannot_read(path, error) from error


def _python_of_archive(file: BinaryIO, path: Path) -> str:
    """Read an archive to its end, and nothing onto the disk; returns the version of its Python, empty if no file tells it."""
    has_python, library, version = False, "", ""
    for member in ArchiveReader(file, str(path)).members():
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
    return version
