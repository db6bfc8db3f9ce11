"""The manifest of an environment: a file in its root, written by ``pybackend pack`` and read before use.

An environment without a manifest is usable too: its files are inspected instead.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from pybackend.author_files import open_regular
from pybackend.errors import ModelEnvironmentError

MANIFEST_FILENAME = "pybackend-environment.json"

FORMAT_VERSION = 1
"""Incremented when an older host could not use environments packed by a newer one."""

_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class PackedPackage:
    """One package of an environment."""

    name: str
    version: str = ""
    source: str = ""  # its origin: a URL or channel, ``pypi``, or empty


@dataclass(frozen=True)
class EnvironmentManifest:
    """The contents of an environment, and the systems it runs on."""

    platform: str = ""  # system and processor, such as ``linux-x86_64``: see :func:`host_platform`
    python: str = ""
    libc: str = ""  # the oldest C library that its binaries run with, such as ``glibc 2.28``; empty if unknown
    free_threaded: bool = False
    packages: tuple[PackedPackage, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    content_hash: str = ""  # hash of the files, computed by the packer; equal for equal environments
    lock: str = ""  # text from which the same environment can be made again; empty if unavailable
    created_by: str = ""

    def to_json(self) -> str:
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=1) + "\n"

    def write(self, prefix: Path) -> None:
        """Write it into an environment's root."""
        (prefix / MANIFEST_FILENAME).write_text(self.to_json())


def read_manifest(prefix: Path) -> EnvironmentManifest | None:
    """The manifest of an environment, None if it has none."""
    path = prefix / MANIFEST_FILENAME
    try:
        with open_regular(path) as file:
            return parse_manifest(file.read(_MOST_BYTES), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelEnvironmentError(f"cannot read {path}: {error.strerror}") from error


def parse_manifest(text: bytes, source: str) -> EnvironmentManifest:
    """Read the text of the file. Raises ModelEnvironmentError if it has a newer format, or is not a manifest."""
    try:
        document = json.loads(text)
        version = document["format_version"]
        if version != FORMAT_VERSION:
            raise ModelEnvironmentError(
                f"{source} has format {version!r}, this host reads format {FORMAT_VERSION}: pack the environment again "
                "with the pybackend that serves it, or serve it with the one that packed it"
            )
        return msgspec.convert(document, EnvironmentManifest)
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.ValidationError) as error:
        raise ModelEnvironmentError(
            f"{source} is not a manifest of an environment ({error!r}): pack the environment again"
        ) from None


def host_platform() -> str:
    """This machine's system and processor, in the form used by manifests."""
    return f"{sys.platform}-{platform.machine()}"


def host_libc() -> str:
    """This machine's C library, such as ``glibc 2.36``; empty if unknown."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""
