"""Real environments for models: an interpreter of this machine as a tree of its own, with numpy, packed."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

from tests.floor.environments import Row, Unavailable, interpreters, python_of

ACTIVATE = "# nothing runs this: the host reads what it would set\n"
_LEFT_OUT = (
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "site-packages",
    "config-3*",
    "*.a",
)
_VERSION = 2


@cache
def foreign_minors() -> tuple[int, ...]:
    """Minor versions of CPython, other than the host's, that a tree can be made of here; the oldest and the newest."""
    found = [minor for minor in interpreters() if minor != sys.version_info.minor and _layout(interpreters()[minor])]
    return tuple(sorted({found[0], found[-1]})) if found else ()


@cache
def _layout(python: str) -> tuple[Path, Path] | None:
    """Base directory and real program of an interpreter, None if its files lie all over the system."""
    code = "import sys, sysconfig, os, json; print(json.dumps([sys.base_prefix, os.path.realpath(sys.executable), sysconfig.get_path('purelib')]))"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    base, program, libraries = map(Path, json.loads(done.stdout))
    usual = base / "lib" / f"python{program.name.removeprefix('python')}" / "site-packages"
    return (base, program) if libraries == usual and program.parent == base / "bin" else None


def tree(minor: int | None = None, *, numpy_major: int = 1) -> Path:
    """An environment as ``pybackend pack`` unpacks it, never to be written to: interpreter, library, numpy, activate.

    Args:
        minor: of CPython 3.x; the oldest foreign one if None.
        numpy_major: 1 or 2.
    """
    if minor is None:
        if not foreign_minors():
            pytest.skip("this machine has no second CPython that could be packed")
        minor = foreign_minors()[0]
    directory = _store() / f"tree-{_VERSION}-3.{minor}-numpy{numpy_major}"
    with open(f"{directory}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            try:
                numpy = Path(python_of(Row(minor, numpy_major, msgpack=False))).parents[1]
            except Unavailable as reason:
                pytest.skip(str(reason))
            draft = directory.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)
            _make(draft, interpreters()[minor], numpy / "lib" / f"python3.{minor}" / "site-packages")
            draft.rename(directory)
    return directory


def packed(minor: int | None = None, suffix: str = ".tar.gz", *, numpy_major: int = 1) -> Path:
    """The archive of :func:`tree`, never to be written to."""
    source = tree(minor, numpy_major=numpy_major)
    archive = source.with_name(source.name + suffix)
    with open(f"{archive}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            draft = archive.with_name(f"draft-{archive.name}")
            pack(source, draft)
            draft.rename(archive)
    return archive


def pack(directory: Path, archive: Path) -> Path:
    """Pack what is in a directory; the archive's name says how."""
    mode = "w:gz" if archive.name.endswith("gz") else "w"
    options = {"compresslevel": 1} if mode == "w:gz" else {}
    with tarfile.open(archive, mode, **options) as tar:
        for name in sorted(os.listdir(directory)):
            tar.add(directory / name, name)
    if archive.name.endswith(".zst"):
        import zstandard

        archive.write_bytes(zstandard.compress(archive.read_bytes(), 3))
    return archive


def copy_of(minor: int | None, directory: Path, *, numpy_major: int = 1) -> Path:
    """A copy of :func:`tree` that a test may spoil."""
    shutil.copytree(tree(minor, numpy_major=numpy_major), directory, symlinks=True, copy_function=linked)
    return directory


def linked(source: str | Path, target: str | Path) -> None:
    """Another name of a file, or a copy of it: to change it, unlink it first."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _store() -> Path:
    store = Path(os.environ.get("PYBACKEND_FLOOR_CACHE") or Path.home() / ".cache" / "pybackend-floor")
    store.mkdir(parents=True, exist_ok=True)
    return store


def _make(directory: Path, python: str, libraries: Path) -> None:
    layout = _layout(python)
    assert layout is not None
    base, program = layout
    name = program.name
    (directory / "bin").mkdir(parents=True)
    shutil.copy2(program, directory / "bin" / name)
    for alias in ("python", "python3"):
        (directory / "bin" / alias).symlink_to(name)
    (directory / "bin" / "activate").write_text(ACTIVATE)
    (directory / "bin" / "tool").write_text("#!/usr/bin/env python -E\nprint('a tool')\n")
    (directory / "bin" / "tool").chmod(0o755)
    (directory / "lib").mkdir()
    for library in base.glob(f"lib/lib{name}*.so*"):
        shutil.copy2(library, directory / "lib" / library.name, follow_symlinks=False)
    shutil.copytree(
        base / "lib" / name, directory / "lib" / name, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    ignore = shutil.ignore_patterns("tests", "__pycache__", "*.pyi")
    shutil.copytree(libraries, directory / "lib" / name / "site-packages", symlinks=True, ignore=ignore)
