"""An environment's Python, determined from its files: nothing in an environment runs with the host's rights."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pybackend.author_files import read_regular
from pybackend.environment.elf import Binary, read_binary
from pybackend.environment.manifest import EnvironmentManifest, PackedPackage, host_libc, host_platform, read_manifest
from pybackend.errors import ModelEnvironmentError

OLDEST_PYTHON = (3, 8)
OLDEST_NUMPY = (1, 19)
"""Requirements of the code that runs in a model's process."""

_MOST_TEXT_BYTES = 16 * 1024 * 1024
_LIBRARY_DIRECTORY = re.compile(r"python(3\.\d+)(t?)")
_PATCH_LEVEL = re.compile(r'^#define\s+PY_VERSION\s+"([^"]+)"', re.MULTILINE)
_NUMPY_VERSION = re.compile(r"""^\s*(?:short_)?version\s*=\s*["']([0-9][^"']*)["']""", re.MULTILINE)
_CONFIGURED_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)
_CONFIGURED_IMPLEMENTATION = re.compile(r"^implementation\s*=\s*(\w+)", re.MULTILINE)
_DISTRIBUTION = re.compile(r"(.+?)-([^-]+)\.dist-info")
_CONDA_PACKAGE = re.compile(r"(.+)-([^-]+)-[^-]+\.json")
_OTHER_PYTHONS = re.compile(r"(pypy|graalpy|micropython|jython)", re.IGNORECASE)


_PATHLESS = frozenset({"_virtualenv.pth", "distutils-precedence.pth"})
"""Files that virtualenv, uv and setuptools leave in every environment; they add nothing to the import path."""


@dataclass(frozen=True)
class Interpreter:
    """Facts about an environment, found without running any of its code."""

    prefix: Path
    python: Path
    version: str  # of Python, such as ``3.12.1`` or ``3.12``; empty if unknown
    implementation: str
    free_threaded: bool
    libraries: Path | None
    binary: Binary | None  # requirements of its program; None for a script that starts another program
    numpy: str | None  # its version, empty if unknown, None if it is not installed
    manifest: EnvironmentManifest | None

    @property
    def platform(self) -> str:
        """Its target platform, such as ``linux-x86_64``; empty if unknown."""
        if self.binary is not None:
            return f"linux-{self.binary.machine}"
        return self.manifest.platform if self.manifest else ""

    def describe(self) -> str:
        """``Python 3.12.1, numpy 2.1.0``."""
        build = " (free-threaded)" if self.free_threaded else ""
        return f"{self.implementation.replace('CPython', 'Python')} {self.version or '?'}{build}, numpy {self.numpy or '?'}"

    def packages(self) -> list[PackedPackage]:
        """Installed packages, from the manifest or from the records of package managers."""
        if self.manifest is not None and self.manifest.packages:
            return list(self.manifest.packages)
        found = {}
        for name in _names(self.prefix / "conda-meta"):
            match = _CONDA_PACKAGE.fullmatch(name)
            if match:
                found[match[1].lower()] = PackedPackage(match[1], match[2], "conda")
        for name in _names(self.libraries):
            match = _DISTRIBUTION.fullmatch(name)
            if match:
                found.setdefault(match[1].lower().replace("_", "-"), PackedPackage(match[1], match[2]))
        return [package for _, package in sorted(found.items())]


def find_interpreter(prefix: Path, source: str) -> Interpreter:
    """Find the interpreter of an environment.

    Raises ModelEnvironmentError if it has no Python, or a manifest that cannot be read.
    """
    manifest = read_manifest(prefix)
    python = next((path for path in (prefix / "bin" / "python", prefix / "bin" / "python3") if path.is_file()), None)
    if python is None:
        link = prefix / "bin" / "python"
        why = f"{link} leads to {os.readlink(link)}, which is missing" if link.is_symlink() else f"there is no {link}"
        raise ModelEnvironmentError(f"{source} has no Python that this host could start: {why}")
    if not os.access(python, os.X_OK):
        raise ModelEnvironmentError(f"{source} has no Python that this host could start: {python} is not executable")
    program = python.resolve()
    library = _library_directory(prefix, program)
    libraries = library / "site-packages" if library and (library / "site-packages").is_dir() else None
    settings = _text(prefix / "pyvenv.cfg")
    return Interpreter(
        prefix=prefix,
        python=python,
        version=_version(prefix, library, program, settings, manifest),
        implementation=_implementation(program, settings),
        free_threaded=manifest.free_threaded if manifest else bool(library and library.name.endswith("t")),
        libraries=libraries,
        binary=_binary(program, source),
        numpy=_numpy(library, libraries, settings),
        manifest=manifest,
    )


def _library_directory(prefix: Path, program: Path) -> Path | None:
    """``lib/python3.X``: the program's, if there are several."""
    found = [path for path in sorted(prefix.glob("lib/python3.*")) if _LIBRARY_DIRECTORY.fullmatch(path.name)]
    return next((path for path in found if path.name == program.name), found[-1] if found else None)


def _version(
    prefix: Path, library: Path | None, program: Path, settings: str, manifest: EnvironmentManifest | None
) -> str:
    if manifest is not None and manifest.python:
        return manifest.python
    configured = _CONFIGURED_VERSION.search(settings)
    if configured:
        return configured[1]
    if library is not None:
        header = patch_level(_text(prefix / "include" / library.name / "patchlevel.h"))
        return header or library.name.removeprefix("python").rstrip("t")
    named = _LIBRARY_DIRECTORY.fullmatch(program.name)
    return named[1] if named else ""


def patch_level(header: str) -> str:
    """The version in the text of Python's ``patchlevel.h``, such as ``3.12.1``; empty if there is none."""
    found = _PATCH_LEVEL.search(header)
    return found[1] if found else ""


def _implementation(program: Path, settings: str) -> str:
    configured = _CONFIGURED_IMPLEMENTATION.search(settings)
    other = _OTHER_PYTHONS.match(program.name)
    return configured[1] if configured else other[1] if other else "CPython"


def _binary(program: Path, source: str) -> Binary | None:
    try:
        return read_binary(program)
    except OSError as error:
        raise ModelEnvironmentError(f"{source}: cannot read its Python, {program}: {error.strerror}") from error


def _numpy(library: Path | None, libraries: Path | None, settings: str) -> str | None:
    """Its version, as far as it can be found without asking Python for its import path."""
    elsewhere = "include-system-site-packages = true" in settings
    if library is None or (library / "dist-packages").is_dir():
        return ""
    for name in _names(libraries):
        match = _DISTRIBUTION.fullmatch(name)
        if match and match[1] == "numpy":
            return match[2]
        elsewhere = elsewhere or (name.endswith(".pth") and name not in _PATHLESS)
    if libraries is not None and (libraries / "numpy").is_dir():
        match = _NUMPY_VERSION.search(_text(libraries / "numpy" / "version.py"))
        return match[1] if match else ""
    return "" if elsewhere else None


def _names(directory: Path | None) -> Iterable[str]:
    if directory is not None:
        with suppress(OSError):
            return sorted(os.listdir(directory))
    return ()


def _text(path: Path) -> str:
    with suppress(OSError):
        return read_regular(path, _MOST_TEXT_BYTES).decode("utf-8", "replace")
    return ""


def check_usable(interpreter: Interpreter, source: str) -> None:
    """Refuse an environment in which a model's process cannot run on this host. The error names both sides.

    Raises ModelEnvironmentError if it is for another system, or lacks a requirement.
    """
    own = host_platform()
    if interpreter.platform not in {"", own}:
        raise ModelEnvironmentError(f"{source} is for {interpreter.platform}, this host is {own}: pack it for {own}")
    loader = interpreter.binary.loader if interpreter.binary else ""
    if loader and not os.path.exists(loader):
        raise ModelEnvironmentError(
            f"{source} was built for another C library: its Python needs {loader}, which this host ({own}, "
            f"{host_libc() or 'C library unknown'}) does not have"
        )
    needed, present = _needed_glibc(interpreter), _glibc(host_libc())
    if needed and present and needed > present:
        raise ModelEnvironmentError(
            f"{source} needs glibc {needed[0]}.{needed[1]}, this host has {host_libc()}: pack it on a system that is not "
            "newer than this one, or from packages built for older systems, such as conda-forge's"
        )
    version = _numbers(interpreter.version)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if interpreter.implementation != "CPython" or (version and version[:2] < OLDEST_PYTHON):
        name = interpreter.implementation.replace("CPython", "Python")
        raise ModelEnvironmentError(
            f"{source} has {name} {interpreter.version}, models of this host run on CPython {oldest} and newer"
        )
    wanted = "numpy >= " + ".".join(map(str, OLDEST_NUMPY))
    if interpreter.numpy is None:
        raise ModelEnvironmentError(
            f"{source} has no numpy for its Python {interpreter.version}: every environment needs {wanted}, the "
            "server's own numpy is not used"
        )
    numpy = _numbers(interpreter.numpy)
    if numpy and numpy[:2] < OLDEST_NUMPY:
        raise ModelEnvironmentError(f"{source} has numpy {interpreter.numpy}, every environment needs {wanted}")


def _needed_glibc(interpreter: Interpreter) -> tuple[int, int] | None:
    """The newest glibc that its Python, its library or its numpy needs."""
    if interpreter.manifest is not None and interpreter.manifest.libc:
        return _glibc(interpreter.manifest.libc)
    binaries = [interpreter.binary]
    paths = list(interpreter.prefix.glob("lib/libpython3*.so*"))
    if interpreter.libraries is not None:
        paths += interpreter.libraries.glob("numpy/*core/_multiarray_umath*.so")
    for path in paths:
        with suppress(OSError):
            binaries.append(read_binary(path))
    return max((binary.glibc for binary in binaries if binary and binary.glibc), default=None)


def _glibc(text: str) -> tuple[int, int] | None:
    found = re.match(r"glibc (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
