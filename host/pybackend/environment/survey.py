"""Checks an environment as far as that is possible without unpacking it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
_MODULE = re.compile(r"lib/python3\.\d+t?/(?:site|dist)-packages/([^/.]+)(?:/|\.py$|\.[^/]*\.so$|$)")
_LEADS_ELSEWHERE = re.compile(r"lib/python3\.\d+t?/(?:site|dist)-packages/[^/]+\.(?:pth|egg-link)")


class Survey(NamedTuple):
    """The result of a look at an environment.

    Attributes:
        python: the version of its Python, such as ``3.12.1``; empty if only unpacking would tell.
        modules: the names of its installed modules; None if some may lie elsewhere.
    """

    python: str
    modules: frozenset[str] | None


def survey(path: Path, *, packs_lists: bool) -> Survey:
    """Check that an environment exists, can be read and looks like one. Blocking.

    Args:
        packs_lists: lists of packages are packed when models are loaded.

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
