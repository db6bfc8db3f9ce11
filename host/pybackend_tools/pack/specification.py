"""Specifications: the contents of an environment, as described by its file."""

import errno
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.author_files import read_regular
from pybackend_tools.pack.errors import SpecificationError, UnpackableError

_MOST_BYTES = 16 * 1024 * 1024


def read_text(path: Path) -> str:
    """The whole file."""
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise SpecificationError(f"{path} is longer than {_MOST_BYTES >> 20} MB: it lists no packages") from None
        raise SpecificationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecificationError(f"{path} is not text in UTF-8") from None


@dataclass(frozen=True)
class CondaPackages:
    """Contents of an environment.yml."""

    channels: tuple[str, ...]  # names, URLs and directories (as URLs), in order of priority
    specs: tuple[str, ...]
    requirements: tuple[str, ...] = ()  # lines of its pip section, in the format of a requirements file
    variables: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class WheelPackages:
    """Contents of a requirements.txt or a pyproject.toml."""

    file: Path
    requirements: tuple[str, ...] = ()  # lines of a requirements.txt; none for a pyproject.toml
    is_project: bool = False  # the file describes a package, which must be installed itself
    requires_python: str = ""  # accepted versions of CPython, such as ``>=3.11``; empty for any


@dataclass(frozen=True)
class CondaPrefix:
    """An existing conda environment."""

    prefix: Path


@dataclass(frozen=True)
class VirtualEnvironment:
    """An existing virtual environment."""

    prefix: Path


Specification = CondaPackages | WheelPackages | CondaPrefix | VirtualEnvironment


def requirement_lines(path: Path) -> tuple[str, ...]:
    """The unmodified lines of a requirements file."""
    lines = tuple(read_text(path).splitlines())
    refuse_editable_lines(path, lines)
    refuse_idle_hashes(path, lines)
    if not any(line.strip() and not line.strip().startswith("#") for line in lines):
        raise SpecificationError(f"{path} lists no package")
    return lines


_EDITABLE = re.compile(r"\s*(-e|--editable)(?:[\s=]|$)")


def refuse_editable_lines(path: Path, lines: tuple[str, ...]) -> None:
    """Check that no package is installed as a link to its sources."""
    for number, line in enumerate(lines, 1):
        if _EDITABLE.match(line):
            raise UnpackableError(
                f"{path}: '{line.strip()}' (number {number}) requests an editable package, which is a link to this "
                "machine's files: remove the option to pack the package itself"
            )


def refuse_idle_hashes(path: Path, lines: tuple[str, ...]) -> None:
    """Check that every hash belongs to a pinned version: uv ignores all others, although the author relies on them."""
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        package, hashed, _ = line.partition(" --hash")
        if hashed and not re.search(r"==|@|://", package) and not package.lstrip().startswith("#"):
            raise SpecificationError(
                f"{path}: '{package.strip()}' has a hash but no pinned version, so it would not be checked: pin it with =="
            )


INDEX_OPTION = re.compile(
    r"\s*(-i|--index-url|--extra-index-url|--index|--default-index|-f|--find-links|--no-index|--pre|--trusted-host"
    r"|--only-binary|--no-binary)(?:[\s=]|$)"
)
"""Options in a requirements file that say where packages come from."""


def index_options(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The option lines needed to find the same packages again."""
    return tuple(line for line in lines if INDEX_OPTION.match(line))


def identity(specification: Specification, options: tuple[str, ...]) -> str:
    """The part of a lock that identifies its file. It changes when the requested packages may have changed.

    ``options``: the relevant options of the command line.
    """
    if isinstance(specification, CondaPackages):
        content: list[object] = [*specification.channels, *sorted(specification.specs), *specification.requirements]
    elif isinstance(specification, WheelPackages):
        content = [line for line in specification.requirements if line.strip() and not line.lstrip().startswith("#")]
        if not specification.requirements:
            project = tomllib.loads(read_text(specification.file))
            content = [project.get("project"), project.get("tool", {}).get("uv")]
    else:
        content = []
    text = json.dumps([content, options], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
