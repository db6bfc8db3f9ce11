"""Finds the CPython for an environment whose file does not provide one, and queries its properties."""

import glob
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pybackend_tools.pack.errors import SpecificationError

OLDEST = (3, 8)
"""CPython 3.8 is the oldest version that models run on."""

_NEWEST_KNOWN = 20

_QUESTION = """
import json, os, platform, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": platform.python_version(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "paths": {name: os.path.realpath(path) for name, path in {
        "executable": getattr(sys, "_base_executable", None) or sys.executable,
        "prefix": sys.base_prefix,
        "standard_library": paths["stdlib"],
        "extensions": os.path.join(paths["platstdlib"], "lib-dynload"),
        "include": sysconfig.get_path("include", vars={"installed_base": sys.base_prefix}),
    }.items()},
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython of this machine."""

    executable: Path  # the program, without links
    version: str  # such as ``3.12.1``
    prefix: Path
    standard_library: Path
    extensions: Path
    include: Path
    free_threaded: bool

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", self.version)[:3])

    @property
    def minor(self) -> str:
        """The version without its last number, such as ``3.12``."""
        return ".".join(map(str, self.release[:2]))


@cache
def probe(path: str) -> Interpreter | None:
    """Query a program's properties; None if it is not CPython, or does not start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-B", "-c", _QUESTION],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        answer = json.loads(done.stdout) if done.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if answer.get("implementation") != "cpython":
        return None
    paths = {name: Path(path) for name, path in answer["paths"].items()}
    return Interpreter(version=answer["version"], free_threaded=answer["free_threaded"], **paths)


def is_version(text: str) -> bool:
    """True for a version of one to three numbers; anything else is a path."""
    return re.fullmatch(r"\d+(\.\d+){0,2}", text) is not None


def minor_of(version: str) -> str:
    """A version without its last number, such as ``3.12``."""
    return ".".join(version.split(".")[:2])


def find_interpreter(wanted: str | None, requires: str = "", source: str = "--python") -> Interpreter:
    """The interpreter for a new environment.

    ``wanted``: a version such as ``3.12``, a program, or a directory with ``bin/python``; None for the running one, or
    the newest one that fits. ``requires``: accepted versions, such as ``>=3.11``; empty for any. ``source``: origin of
    ``wanted``, for messages.
    """
    if wanted is not None and not is_version(wanted):
        return _checked(_of_path(wanted, source), requires, f"{source} {wanted}")
    own = probe(_own())
    if wanted is None and own is not None and _does(own, wanted, requires):
        return own
    likely = _of_this_machine(wanted) if wanted is not None else ()
    fitting = [interpreter for interpreter in likely or _of_this_machine(None) if _does(interpreter, wanted, requires)]
    if not fitting:
        if wanted is not None:
            _check_version(wanted, requires, likely, source)
        asked = f"CPython {wanted or requires}"
        found = [interpreter for interpreter in _of_this_machine(None) if interpreter.release >= OLDEST]
        have = ", ".join(f"{interpreter.version} ({interpreter.executable})" for interpreter in found)
        raise SpecificationError(
            f"there is no {asked} on this machine. Found: {have or 'none'}. Install one (`uv python install {wanted or '3.12'}`), or "
            "name one with --python /path/to/python"
        )
    return max(fitting, key=lambda interpreter: interpreter.release)


def _check_version(wanted: str, requires: str, likely: Iterable[Interpreter], source: str) -> None:
    """Refuse a version that would not be accepted even if it were installed."""
    if tuple(map(int, wanted.split("."))) < OLDEST[: wanted.count(".") + 1]:
        raise SpecificationError(f"{source} {wanted}: models run in {'.'.join(map(str, OLDEST))} and newer")
    for interpreter in likely:
        if _does(interpreter, wanted, "") and not _fulfils(interpreter, requires):
            _checked(interpreter, requires, f"{source} {wanted}")


def _does(interpreter: Interpreter, wanted: str | None, requires: str) -> bool:
    return (
        interpreter.release >= OLDEST
        and not interpreter.free_threaded
        and _matches(interpreter, wanted)
        and _fulfils(interpreter, requires)
    )


def _of_path(wanted: str, source: str) -> Interpreter:
    path = Path(wanted).expanduser()
    if path.is_dir():
        path = next(
            (path / "bin" / name for name in ("python3", "python") if (path / "bin" / name).exists()),
            path / "bin/python3",
        )
    if not path.exists():
        raise SpecificationError(f"{source} {wanted}: {path} does not exist; write a version such as 3.12, or a path")
    found = probe(os.path.abspath(path))
    if found is None:
        raise SpecificationError(f"{source} {wanted}: {path} is not a working CPython")
    return found


def _checked(interpreter: Interpreter, requires: str, source: str) -> Interpreter:
    if interpreter.release < OLDEST:
        raise SpecificationError(
            f"{source} is CPython {interpreter.version}; models run in {'.'.join(map(str, OLDEST))} and newer"
        )
    if not _fulfils(interpreter, requires):
        raise SpecificationError(f"{source} is CPython {interpreter.version}, and the project requires {requires}")
    return interpreter


def _matches(interpreter: Interpreter, wanted: str | None) -> bool:
    if wanted is None:
        return True
    numbers = tuple(map(int, wanted.split(".")))
    return interpreter.release[: len(numbers)] == numbers


def _fulfils(interpreter: Interpreter, requires: str) -> bool:
    if not requires:
        return True
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(requires).contains(interpreter.version, prereleases=True)
    except InvalidSpecifier:
        raise SpecificationError(f"requires-python = '{requires}' cannot be read") from None


@cache
def _of_this_machine(wanted: str | None) -> tuple[Interpreter, ...]:
    """Every CPython found, one per location; with ``wanted``, without those whose paths name another version."""
    found: dict[Path, Interpreter] = {}
    for path in _candidates():
        named = re.search(r"(?:^|[/-]|python)(\d+\.\d+)(?:\.\d+)?[^/]*(?:/bin/python3)?$", path)
        if wanted is not None and named is not None and named[1] != ".".join(wanted.split(".")[:2]):
            continue
        interpreter = probe(path)
        if interpreter is not None:
            found.setdefault(interpreter.executable, interpreter)
    return tuple(found.values())


def _own() -> str:
    return str(getattr(sys, "_base_executable", sys.executable))


def _candidates() -> Iterator[str]:
    yield _own()
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", data / "uv" / "python"))
    for installed in (pyenv, managed):
        # Not Path.glob: it would fail on a directory that this user may not read.
        yield from sorted(glob.glob(f"{glob.escape(str(installed))}/*/bin/python3"))
    directories = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/bin", "/usr/bin"]
    for directory in dict.fromkeys(filter(None, directories)):
        programs = (os.path.join(directory, f"python3.{minor}") for minor in range(OLDEST[1], _NEWEST_KNOWN))
        yield from (program for program in programs if os.access(program, os.X_OK))
