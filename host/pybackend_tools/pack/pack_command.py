"""``pybackend pack``: its command line and its output."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pybackend.cli.command_parser import PlainParser, UsageError
from pybackend.cli.output import counted, print_error, terminated
from pybackend.modelconfig.backends import backends_with_recipes, lock_of, recipe_of
from pybackend_tools.pack import PackError, PackOptions, PackResult, pack
from pybackend_tools.pack.errors import ConflictError, SpecificationError, UnsolvableError
from pybackend_tools.pack.options import FORMATS, Progress, TerminalProgress
from pybackend_tools.pack.surprises import gigabytes, surprises

_DEFAULT_LOCK = ""
"""Value of --lock without a name: the archive's name with another suffix."""

_EPILOG = """\
Exit status: 0 packed; 2 the file or the command line is wrong; 3 no such packages; 4 a channel or index is unreachable;
5 no space or not writable; 6 the environment cannot be packed; 7 packages for packing are not installed; 1 anything else.
"""


def make_parser() -> argparse.ArgumentParser:
    """The command line behind ``pybackend pack``."""
    parser = PlainParser(
        prog="pybackend pack",
        description="Packs an environment for models to run in. Conda need not be installed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="environment.yml, requirements.txt, pyproject.toml, or the directory of a conda or virtual environment",
    )
    add(
        "--backend",
        choices=backends_with_recipes(),
        metavar="NAME",
        help="instead of FILE: the environment of a backend that comes with pybackend; "
        f"{', '.join(backends_with_recipes())}",
    )
    add(
        "-o", "--output", type=Path, metavar="ARCHIVE", help="the file to write [env.tar.gz, NAME.tar.gz for a backend]"
    )
    add(
        "--format",
        choices=["tar.gz", "gz", "tar.zst", "zst"],
        metavar="FORMAT",
        help="tar.gz, which Triton reads too, or zst, which is smaller and unpacks faster [from the archive's name]",
    )
    add(
        "--python",
        metavar="VERSION|PATH",
        help="interpreter for a requirements.txt or pyproject.toml [from .python-version beside it, or pybackend's]",
    )
    add(
        "--extra",
        action="append",
        default=[],
        metavar="NAME",
        help="optional dependencies of a pyproject.toml; may be repeated",
    )
    add(
        "--lock",
        nargs="?",
        const=_DEFAULT_LOCK,
        metavar="PATH",
        help="install exactly what this file lists, or write it if it does not exist [the archive's name with .lock]",
    )
    add(
        "--upgrade",
        action="store_true",
        help="with --backend: the newest packages that its models can run with, instead of the versions that pybackend lists",
    )
    add("--dry-run", action="store_true", help="only show what would be installed, with sizes")
    add("--no-msgpack", action="store_true", help="do not add msgpack to the packages")
    add(
        "--work-directory",
        type=Path,
        metavar="DIR",
        help="where the environment is assembled [pybackend's cache directory]",
    )
    return parser


def run_pack(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    try:
        parser = make_parser()
        given = parser.parse_args(list(arguments))
        if (given.file is None) == (given.backend is None):
            parser.error("name either a FILE or a --backend")
        if given.upgrade and given.backend is None:
            parser.error("--upgrade is for --backend: delete the --lock of a FILE to upgrade its packages")
    except UsageError as error:
        print_error(f"{error.usage}{error}")
        return SpecificationError.status
    archive_format = None if given.format is None else next(name for name in FORMATS if name.endswith(given.format))
    archive = given.output or Path(f"{given.backend or 'env'}.{archive_format or 'tar.gz'}")
    warnings: list[str] = []
    previous = signal.signal(signal.SIGTERM, terminated)
    try:
        options = PackOptions(
            archive_format=archive_format,
            python=given.python,
            extras=tuple(given.extra),
            lock=_lock(given.lock, archive),
            msgpack=not given.no_msgpack,
            dry_run=given.dry_run,
            work_directory=given.work_directory,
            progress=_progress(),
            warn=warnings.append,
        )
        file = given.file or _packages_of(given.backend, given.upgrade, warnings)
        result = pack(file, archive, options)
    except PackError as error:
        print_error(f"error: {_with_way_out(error, given)}")
        return error.status
    finally:
        signal.signal(signal.SIGTERM, previous)
        for warning in warnings:
            print_error(f"warning: {warning}")
    if result.archive is None:
        _print_plan(result)
    else:
        _print_packed(result)
        if given.backend:
            sys.stdout.write(f"serve with --backend-config={given.backend},environment={result.archive}\n")
    return 0


def _packages_of(backend: str, upgrade: bool, warnings: list[str]) -> Path:
    lock = lock_of(backend)
    if upgrade:
        return recipe_of(backend)
    if os.environ.get("UV_TORCH_BACKEND") and re.search("^torch==", lock.read_text(encoding="utf-8"), re.MULTILINE):
        warnings.append(
            "UV_TORCH_BACKEND chooses other builds of torch than pybackend lists: all packages are the newest"
        )
        return recipe_of(backend)
    return lock


def _with_way_out(error: PackError, given: argparse.Namespace) -> str:
    if given.backend is None and isinstance(error, ConflictError):
        return (
            f"{str(error).rstrip('.')}. Change one of these requirements, or pack an environment for each: every model can "
            "run in its own"
        )
    if given.backend is None or given.upgrade or not isinstance(error, UnsolvableError):
        return str(error)
    return (
        f"{str(error).rstrip('.')}. These are the versions that pybackend lists for {given.backend}: "
        "--upgrade takes the newest that fit instead"
    )


def _progress() -> Progress:
    if not sys.stderr.isatty():
        return Progress()
    try:
        return TerminalProgress(sys.stderr)
    except ImportError:  # the extra is not installed; the error that follows says so
        return Progress()


def _lock(given: str | None, archive: Path) -> Path | None:
    if given is None:
        return None
    if given != _DEFAULT_LOCK:
        return Path(given)
    suffix = next(
        (suffix for each in FORMATS.values() for suffix in each if archive.name.endswith(suffix)), archive.suffix
    )
    return archive.with_name(f"{archive.name.removesuffix(suffix)}.lock")


def _print_plan(result: PackResult) -> None:
    width = max((len(package.name) for package in result.packages), default=0)
    for package in result.packages:
        size = "?" if package.size_bytes is None else gigabytes(package.size_bytes) if package.size_bytes else "-"
        sys.stdout.write(f"{package.name:<{width}}  {package.version:<16} {size:>10}  {package.source}\n")
    sys.stdout.write(f"{counted(len(result.packages), 'package')}, {_download(result)}; nothing was installed\n")
    for sentence in surprises({package.name: package.size_bytes or 0 for package in result.packages}):
        print_error(f"warning: {sentence}")


def _download(result: PackResult) -> str:
    """A phrase about the size of the download, as far as the index states it."""
    total = sum(package.size_bytes or 0 for package in result.packages)
    unknown = sum(package.size_bytes is None for package in result.packages)
    if not unknown:
        return f"{gigabytes(total)} to download" if total else "nothing to download"
    stated = f"{gigabytes(total)} and " if total else ""
    return f"{stated}{counted(unknown, 'package')} of unknown size to download"


def _print_packed(result: PackResult) -> None:
    assert result.manifest is not None
    sys.stdout.write(
        f"{result.archive}: {gigabytes(result.size_bytes)}, {gigabytes(result.unpacked_bytes)} unpacked, "
        f"CPython {result.manifest.python}, {counted(len(result.manifest.packages), 'package')}, {sum(result.seconds.values()):.1f} s\n"
    )
