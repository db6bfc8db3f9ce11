"""Packages from a Python index: resolved, installed and pinned by uv, for an interpreter other than the running one."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pybackend_tools.pack.errors import (
    ConflictError,
    PackError,
    SpecificationError,
    UnpackableError,
    UnreachableError,
    UnsolvableError,
    told_output_error,
)
from pybackend_tools.pack.options import PackedSize

_LISTS: Mapping[str, str] = {
    "UV_BUILD_CONSTRAINT": " ",
    "UV_CONSTRAINT": " ",
    "UV_DEFAULT_INDEX": " ",
    "UV_EXCLUDE": " ",
    "UV_EXTRA_INDEX_URL": " ",
    "UV_FIND_LINKS": ",",
    "UV_INDEX": " ",
    "UV_INDEX_URL": " ",
    "UV_OVERRIDE": " ",
}
"""Variables with files, directories and URLs, and what separates them."""

_SINGLE = ("UV_CACHE_DIR", "UV_CONFIG_FILE")
_NOT_FOR_PACKING = {"VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_PROJECT"}

_INDEX = re.compile(r"\s*(-i|--index-url|--default-index)(?:[\s=]|$)")

OTHER_PLACES = (
    "If packages come from a mirror or a directory here, name it: UV_DEFAULT_INDEX=URL or UV_FIND_LINKS=DIRECTORY. Settings of pip "
    "are not read"
)
"""The way out if the default index is out of reach."""


def uv_environment() -> dict[str, str]:
    """This process's environment, set so that uv neither picks or downloads an interpreter, nor wraps its errors.

    uv runs in the directory of the file that lists the packages; paths in its variables are relative to this process's.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "CONDA")) and name not in _NOT_FOR_PACKING
    }
    for name in _SINGLE:
        if kept.get(name):
            kept[name] = os.path.abspath(kept[name])
    for name, separator in _LISTS.items():
        if kept.get(name):
            kept[name] = separator.join(map(_absolute, kept[name].split(separator)))
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1", "COLUMNS": "100000"}


def uv_cache_directory() -> Path:
    """The cache directory of uv, as determined by the environment alone."""
    named = os.environ.get("UV_CACHE_DIR")
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "uv").expanduser()


def names_an_index(lines: Sequence[str]) -> bool:
    """Whether the environment, or a line of a requirements file, replaces the default index."""
    return any(os.environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")) or any(map(_INDEX.match, lines))


def _absolute(place: str) -> str:
    """A path that exists as an absolute one; URLs, and what exists nowhere, unchanged."""
    return os.path.abspath(place) if place and os.path.exists(place) else place


MSGPACK = "msgpack"

_PROGRESS = r"Using (CPython|Python)|Resolved|Prepared|Audited|Download(ing|ed) |Build(ing|t) |Updat(ing|ed) |(Uni|I)nstalled \d"
_UNAVAILABLE = r"not found in|no versions? of|are no versions|has no usable wheels|has no wheels|unavailable|does not satisfy Python"
_MOST_OUTPUT = 200
"""Characters of the last line that a failed build has printed."""


@dataclass(frozen=True)
class WheelOrder:
    """A request to uv."""

    directory: Path  # base of relative paths
    lines: tuple[str, ...] = ()
    projects: tuple[Path, ...] = ()  # pyproject.toml files whose dependencies are installed
    packages: tuple[Path, ...] = ()  # directories of projects that are installed themselves
    extras: tuple[str, ...] = ()  # optional dependencies of these

    def files(self) -> list[str]:
        """Names of uv's input files; ``-`` is its standard input."""
        return ["-", *map(str, self.projects)]

    def flags(self) -> list[str]:
        """Command-line options for these files."""
        return [f"--extra={extra}" for extra in self.extras if self.projects]

    def text(self) -> str:
        """The text for uv's standard input."""
        wanted = [
            package.as_uri()
            if not self.extras
            else f"{project_name(package)}[{','.join(self.extras)}] @ {package.as_uri()}"
            for package in self.packages
        ]
        return "\n".join([*self.lines, *wanted]) + "\n"


def project_name(directory: Path) -> str:
    """The name of the project in a directory."""
    with (directory / "pyproject.toml").open("rb") as file:
        name = tomllib.load(file).get("project", {}).get("name")
    if not isinstance(name, str):
        raise SpecificationError(f"{directory / 'pyproject.toml'}: [project] has no name")
    return name


def resolve(order: WheelOrder, python: Sequence[str]) -> list[PackedSize]:
    """Packages that would be installed, with their download sizes.

    ``python``: uv's options that select the interpreter.
    """
    done = _uv(
        ["pip", "compile", "--quiet", "--no-header", "--format=pylock.toml", *python, *order.flags(), *order.files()],
        order,
    )
    packages = tomllib.loads(done).get("packages", [])
    return [
        PackedSize(package["name"], package.get("version", ""), _download_bytes(package), _source(package))
        for package in packages
    ]


def install(order: WheelOrder, python: Path, *, dependencies: bool = True) -> None:
    """Install packages for an interpreter."""
    # Copies, not links: installed files may be modified in place, and links would modify uv's cache too.
    flags = [f"--python={python}", "--break-system-packages", "--link-mode=copy"]
    if not dependencies:
        flags.append("--no-deps")
    _uv(["pip", "install", *flags, *order.flags(), *(part for file in order.files() for part in ("-r", file))], order)


def install_with_msgpack(order: WheelOrder, python: Path) -> None:
    """Install packages, with msgpack if it is available."""
    try:
        install(replace(order, lines=(*order.lines, MSGPACK)), python)
    except PackError as error:
        # Required hashes, an index without msgpack, an interpreter too new for it: none is a reason not to pack.
        if MSGPACK not in str(error) or re.search(rf"^\s*{MSGPACK}\b", order.text(), re.MULTILINE):
            raise
        install(order, python)


def pinned(names: set[str], options: Sequence[str], python: Path, directory: Path, *, hashes: bool) -> list[str]:
    """Lines of a requirements file that pin the installed packages.

    ``names``: normalised names of the packages to include. ``directory``: base of relative paths. ``hashes``: include
    the packages' hashes, which must be looked up.
    """
    if not names:
        return []
    frozen = _uv(["pip", "freeze", "--quiet", f"--python={python}"], WheelOrder(directory)).splitlines()
    wanted = [line for line in frozen if normalised(re.split(r"[=@ ]", line, maxsplit=1)[0]) in names]
    if not wanted or not hashes:
        return wanted
    order = WheelOrder(directory, (*options, *wanted))
    flags = ["--quiet", "--no-header", "--no-annotate", "--no-deps", "--generate-hashes", f"--python={python}"]
    text = _uv(["pip", "compile", *flags, *order.files()], order)
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith(("#", "-"))]


def normalised(name: str) -> str:
    """A package's name in the form in which indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _fullest(places: Sequence[Path]) -> Path:
    """The place with the least free disk space among those an installer writes to."""
    there = (place for place in places if place.exists())
    return min(there, key=lambda place: shutil.disk_usage(place).free, default=Path("/"))


def _uv(arguments: list[str], order: WheelOrder) -> str:
    from uv import find_uv_bin

    # uv prints only results on standard output, and all errors on standard error.
    done = subprocess.run(
        [find_uv_bin(), *arguments],
        input=order.text(),
        capture_output=True,
        text=True,
        cwd=order.directory,
        env=uv_environment(),
        check=False,
    )
    if done.returncode:
        python = next((Path(flag[9:]) for flag in arguments if flag.startswith("--python=")), None)
        raise _error(done.stderr, order, python)
    return done.stdout


def _error(complaint: str, order: WheelOrder, python: Path | None) -> PackError:
    message = _readable(complaint)
    places = [uv_cache_directory(), *([] if python is None else [python.parent])]
    told = told_output_error(message, "install packages", _fullest(places))
    if told is not None:
        return told
    if re.search(
        r"error sending request|dns error|Connection refused|timed out|Could not (connect|resolve)|unable to access",
        message,
    ):
        hint = "" if names_an_index(order.lines) or "Failed to fetch" not in message else f". {OTHER_PLACES}"
        return UnreachableError(f"an index cannot be reached: {message.rstrip('.')}{hint}")
    if re.search(r"No solution found|not found in the package registry|no version of|has no usable wheels", message):
        kind = UnsolvableError if re.search(_UNAVAILABLE, message) else ConflictError
        reason = message.removeprefix("No solution found when resolving dependencies: ")
        return kind(f"no set of packages satisfies the request: {reason}")
    if "Failed to build" in message:
        return UnsolvableError(f"a package has no wheel for this Python, and cannot be built here: {message}")
    if re.search(r"Distribution not found|Failed to (fetch|download|prepare|install)|does not exist", message):
        return UnsolvableError(f"a package is unavailable: {message}")
    if re.search(
        r"Couldn't parse|Failed to parse|Error parsing|[Ii]nvalid|Unsupported|[Ee]xtra|File not found|expected", message
    ):
        return SpecificationError(f"the requirements cannot be read: {message}")
    if "editable" in message.lower():
        return UnpackableError(message)
    return PackError(f"uv gave up: {message}")


def _readable(complaint: str) -> str:
    """The error message of uv, without box-drawing characters and progress reports.

    Of a failed build, its last words.
    """
    lines = []
    for line in _without_build_output(complaint.splitlines()):
        words = re.sub(r"[\u00d7\u2500-\u257f\u25b6]+", " ", line).strip()
        # A line of carets points into the preceding line. In one line, it would point nowhere.
        if words and not re.match(rf"({_PROGRESS}|warning:|hint: Build failures)|\^+$", words):
            words = words.replace("in `-`", "in the request")  # uv's name for standard input
            lines.append(re.sub(r"^(error|cause|Caused by): ", "", words))
    return re.sub(r"\s+", " ", ": ".join(line.rstrip(":") for line in lines)).replace(".: ", ". ") or "no error message"


def _without_build_output(lines: Sequence[str]) -> list[str]:
    """Lines of uv's error, and of the output of a program that has built a package only the last line, in brackets."""
    kept: list[str] = []
    output: list[str] | None = None
    for line in lines:
        words = line.strip()
        if words in {"[stdout]", "[stderr]"}:
            output = output or []
        elif output is not None and not line.startswith("hint:"):
            output += [words[-_MOST_OUTPUT:]] if words else []
        else:
            kept += [f"({output[-1]})"] if output else []
            output = None
            kept.append(line)
    return kept + ([f"({output[-1]})"] if output else [])


def _download_bytes(package: dict[str, Any]) -> int | None:
    """The size of the largest file that may be downloaded; None if the index does not state sizes."""
    files = package.get("wheels") or [package.get("sdist") or package.get("archive") or {}]
    assert isinstance(files, list)
    return max(filter(None, map(_file_bytes, files)), default=None)


def _file_bytes(file: dict[str, Any]) -> int | None:
    if file.get("size"):
        return int(file["size"])
    path = _place(file)
    try:
        return os.stat(path).st_size if os.path.isabs(path) else None
    except OSError:
        return None


def _source(package: dict[str, Any]) -> str:
    for kind in ("directory", "archive", "vcs"):
        place = package.get(kind)
        if isinstance(place, dict):
            return _place(place)
    files = [_place(file) for file in package.get("wheels") or [package.get("sdist") or {}]]
    return os.path.dirname(files[0]) if os.path.isabs(files[0]) else "pypi"


def _place(file: dict[str, Any]) -> str:
    """The path of a file or directory on this machine, or the URL of another."""
    return unquote(str(file.get("path") or file.get("url") or "")).removeprefix("file://")
