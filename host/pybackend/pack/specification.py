"""What an environment is made of, as its file says it."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pybackend.pack.errors import SpecificationError, UnpackableError
from pybackend.pack.text_file import read_text


@dataclass(frozen=True)
class CondaPackages:
    """Of an environment.yml.

    Attributes:
        channels: names, URLs and directories (as URLs), the first one is asked first.
        specs: what is asked for, as conda writes it.
        requirements: lines of its pip section: those of a requirements file.
        variables: environment variables that its models get.
    """

    channels: tuple[str, ...]
    specs: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class WheelPackages:
    """Of a requirements.txt or a pyproject.toml.

    Attributes:
        file: one of them.
        requirements: lines of a requirements.txt; none for a pyproject.toml.
        is_project: the file describes a package, which is wanted itself.
        requires_python: versions of CPython that do, such as ``>=3.11``; empty for any.
    """

    file: Path
    requirements: tuple[str, ...] = ()
    is_project: bool = False
    requires_python: str = ""


@dataclass(frozen=True)
class CondaPrefix:
    """A conda environment that is there already."""

    prefix: Path


@dataclass(frozen=True)
class VirtualEnvironment:
    """A virtual environment that is there already."""

    prefix: Path


Specification = CondaPackages | WheelPackages | CondaPrefix | VirtualEnvironment


def requirement_lines(path: Path) -> tuple[str, ...]:
    """The lines of a requirements file, as they are.

    Raises:
        SpecificationError: it cannot be read, or is empty.
        UnpackableError: it asks for an editable package.
    """
    lines = tuple(read_text(path).splitlines())
    refuse_editable_lines(path, lines)
    refuse_idle_hashes(path, lines)
    if not any(line.strip() and not line.strip().startswith("#") for line in lines):
        raise SpecificationError(f"{path} names no package")
    return lines


_EDITABLE = re.compile(r"\s*(-e|--editable)(?:[\s=]|$)")


def refuse_editable_lines(path: Path, lines: tuple[str, ...]) -> None:
    """Check that nothing is to be installed by a link to its sources.

    Raises:
        UnpackableError: something is.
    """
    for number, line in enumerate(lines, 1):
        if _EDITABLE.match(line):
            raise UnpackableError(
                f"{path}: '{line.strip()}' (number {number}) asks for an editable package, which is a link to this machine's "
                "files: remove the option, and the package itself is packed"
            )


def refuse_idle_hashes(path: Path, lines: tuple[str, ...]) -> None:
    """Check that every hash is one of a certain version: uv passes over others, and somebody relies on them.

    Raises:
        SpecificationError: one is not.
    """
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        package, hashed, _ = line.partition(" --hash")
        if hashed and not re.search(r"==|@|://", package) and not package.lstrip().startswith("#"):
            raise SpecificationError(
                f"{path}: '{package.strip()}' has a hash and no certain version, so it would not be checked: pin it with =="
            )


INDEX_OPTION = re.compile(
    r"\s*(-i|--index-url|--extra-index-url|--index|--default-index|-f|--find-links|--no-index|--pre|--trusted-host"
    r"|--only-binary|--no-binary)(?:[\s=]|$)"
)
"""Lines of a requirements file that say where packages come from, not which."""


def index_options(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines that are needed to find the same packages again."""
    return tuple(line for line in lines if INDEX_OPTION.match(line))


def identity(specification: Specification, options: tuple[str, ...]) -> str:
    """What a lock remembers of the file that it was made for: it changes when other packages might be asked for.

    Args:
        specification: that was read.
        options: of the command line that matter.
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
