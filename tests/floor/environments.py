"""Environments of models: every CPython of this machine, with an old and a new numpy, with and without msgpack.

They are virtual environments in a cache directory, made when they are first needed and used again by later runs.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.support.thorough import thorough

FLOOR = (3, 8)
"""The oldest CPython that a model's environment may have."""

KNOWN_MINORS = range(8, 15)
"""CPython 3.x that there are; those that this machine lacks are reported, not forgotten."""

OLDEST_NUMPY_1 = {8: "1.19.0", 9: "1.19.3", 10: "1.21.2", 11: "1.23.2", 12: "1.26.0"}
"""The first numpy since 1.19 of which there is a wheel, by the minor version of CPython."""

FIRST_MINOR_WITH_NUMPY_2 = 9

_MADE = ".made-by-the-floor-tests"


class Unavailable(Exception):
    """An environment that cannot be had here; the text says why."""


@dataclass(frozen=True)
class Row:
    """One environment of the table.

    Attributes:
        minor: of CPython 3.x.
        numpy_major: 1 or 2.
        msgpack: True if the environment has it.
    """

    minor: int
    numpy_major: int
    msgpack: bool

    def __str__(self) -> str:
        return f"cpython3.{self.minor}-numpy{self.numpy_major}-{'msgpack' if self.msgpack else 'json'}"

    @property
    def numpy_requirement(self) -> str:
        """What pip is asked for: the oldest numpy 1, or the newest numpy 2.

        Raises:
            Unavailable: this CPython and this numpy do not go together.
        """
        if self.numpy_major == 2:
            if self.minor < FIRST_MINOR_WITH_NUMPY_2:
                raise Unavailable(f"there is no numpy 2 for CPython 3.{self.minor}")
            return "numpy>=2,<3"
        if self.minor not in OLDEST_NUMPY_1:
            raise Unavailable(f"there is no wheel of numpy 1 for CPython 3.{self.minor}")
        return f"numpy=={OLDEST_NUMPY_1[self.minor]}"


def rows(protocols: Sequence[bool] = (False, True)) -> list[Any]:
    """The environments to test, as parameters of pytest.

    ``make test`` takes the oldest CPython with the oldest numpy over json, and the newest one found with the newest
    numpy over msgpack; ``make test-all`` takes every CPython with both, over both.

    Args:
        protocols: whether environments have msgpack.
    """
    few = (Row(FLOOR[1], 1, msgpack=False), Row(max(interpreters()), 2, msgpack=True))
    known = [Row(*each) for each in product(sorted({*KNOWN_MINORS, *interpreters()}), (1, 2), protocols)]
    return [row if row in few else thorough(row)[0] for row in known]


@functools.cache
def interpreters() -> dict[int, str]:
    """Every CPython 3.x of this machine that is at least the floor, by its minor version."""
    found: dict[int, tuple[tuple[int, ...], str]] = {}
    for path in _candidates():
        version = _version(path)
        if version is not None and version[:2] >= FLOOR and version > found.get(version[1], ((), ""))[0]:
            found[version[1]] = version, path
    own = sys.version_info.minor
    found[own] = sys.version_info[:3], sys._base_executable  # type: ignore[attr-defined]
    return {minor: path for minor, (_, path) in sorted(found.items())}


def _candidates() -> list[str]:
    """Paths that may be interpreters, one for each file; without pyenv's shims: what they stand for is there as well."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    directories = {*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"} - {str(pyenv / "shims")}
    paths = [str(path) for path in pyenv.glob("versions/*/bin/python")]
    paths += [f"{directory}/python3.{minor}" for directory in sorted(directories) for minor in KNOWN_MINORS]
    return list({os.path.realpath(path): path for path in paths if os.access(path, os.X_OK)}.values())


def _version(path: str) -> tuple[int, ...] | None:
    code = "import sys; print(sys.implementation.name, *sys.version_info[:3])"
    try:
        done = subprocess.run([path, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    words = done.stdout.split()
    if done.returncode or words[:1] != ["cpython"]:
        return None
    return tuple(map(int, words[1:]))


def python_of(row: Row) -> str:
    """The interpreter of an environment, which is made if it is not there yet.

    Raises:
        Unavailable: it cannot be had.
    """
    base = interpreters().get(row.minor)
    if base is None:
        raise Unavailable(f"there is no CPython 3.{row.minor} on this machine")
    requirement = row.numpy_requirement
    numpy_python = _environment(base, row.minor, requirement, None)
    return _environment(base, row.minor, "msgpack", numpy_python) if row.msgpack else numpy_python


def python_with(package: str, row: Row) -> str:
    """The interpreter of a row's environment with one more package.

    Raises:
        Unavailable: it cannot be had.
    """
    python = python_of(row)
    return _environment(interpreters()[row.minor], row.minor, package, python)


def host_python_with(requirement: str) -> str:
    """An interpreter that has the packages of the one that runs the tests, but another release of one of them.

    Raises:
        Unavailable: it cannot be had.
    """
    return _environment(sys._base_executable, sys.version_info.minor, requirement, sys.executable)  # type: ignore[attr-defined]


def _environment(base: str, minor: int, requirement: str, below: str | None) -> str:
    """An environment with one package; what ``below`` has can be imported in it too."""
    identity = hashlib.blake2b("\0".join((base, requirement, below or "")).encode(), digest_size=4).hexdigest()
    cache = Path(os.environ.get("PYBACKEND_FLOOR_CACHE") or Path.home() / ".cache" / "pybackend-floor")
    directory = cache / f"cpython3.{minor}-{re.split('[=<>]', requirement)[0]}-{identity}"
    python = str(directory / "bin" / "python")
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{directory}.lock", "w") as lock:  # several test processes may want it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / _MADE).exists() or _version(python) is None:
            _make(base, directory, minor, requirement, below)
    return python


def _make(base: str, directory: Path, minor: int, requirement: str, below: str | None) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    done = subprocess.run(
        [base, "-I", "-m", "venv", "--without-pip", str(directory)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"{base} cannot make an environment: {(done.stderr or done.stdout).strip()[-300:]}")
    packages = _site_packages(directory, minor)
    _install(requirement, minor, packages)
    if below is not None:
        (packages / "below.pth").write_text(f"{_site_packages(Path(below).parent.parent, minor)}\n")
    (directory / _MADE).touch()


def _site_packages(environment: Path, minor: int) -> Path:
    return environment / "lib" / f"python3.{minor}" / "site-packages"


def _install(requirement: str, minor: int, packages: Path) -> None:
    """Put wheels for another interpreter in place, with this interpreter's pip: an old one's cannot read every index."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [
                *_pip(), "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:",
                "--retries=1", "--timeout=60",
                # A wheel says by its tags which interpreter it is for; this check is against the one that runs pip.
                "--ignore-requires-python",
                "--python-version", f"3.{minor}", "--implementation", "cp", "--target", str(packages), requirement,
            ],
            capture_output=True, text=True, check=False, cwd=empty, timeout=200,
        )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise Unavailable(f"{requirement} for CPython 3.{minor} cannot be installed: {last}")


@functools.cache
def _pip() -> tuple[str, ...]:
    for python in (sys.executable, sys._base_executable, *reversed(interpreters().values())):  # type: ignore[attr-defined]
        if subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return python, "-m", "pip"
    raise Unavailable("no interpreter of this machine has pip")
