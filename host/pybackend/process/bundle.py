"""The stub's code as a directory that any Python can run: staged once per content, outside every environment."""

import hashlib
import importlib.util
import os
import py_compile
import shutil
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from pybackend import __version__
from pybackend.environment.file_lock import FileLock
from pybackend.errors import ServerError

_PACKAGES = ("pybackend_wire", "pybackend_sdk", "pybackend_stub", "pybackend_backends")
_MODULES = ("triton_python_backend_utils", "c_python_backend_utils")
_MAIN = "import sys\n\nfrom pybackend_stub.bootstrap import main\n\nsys.exit(main(sys.argv[1:]))\n"
_NOT_STAGED = "__pycache__"

_NAME, _DRAFT = "stub-", ".staging-"
_LOCK = ".lock"

UNUSED_S = 7 * 24 * 3600.0
"""A directory of another version is kept for so long after the last start of a server that used it."""

_LONGEST_WAIT_S = 5.0
"""For a lock, whose exclusive holder only removes a small directory."""

_held: dict[Path, FileLock] = {}
"""Shared locks on the directories that this process may start stubs from, held until it ends."""


def stage_bundle(cache_directory: Path | None = None) -> Path:
    """Return the directory to start stubs from; it is made if it does not exist for this version.

    It holds the stub, the wire, the SDK and the backends, and nothing else of the host's environment, so that a model
    never imports the host's packages by accident. Compiled files for this interpreter lie beside the sources.

    This process holds it until it ends: :func:`remove_unused_bundles` of other servers leaves it alone.

    Raises ServerError if no directory is writable.
    """
    sources = _sources()
    digest = hashlib.blake2b(__version__.encode() + _MAIN.encode(), digest_size=12)
    for name, path in sources:
        digest.update(name.encode() + b"\0" + path.read_bytes())
    for parent in [cache_directory] if cache_directory else server_directories():
        target = parent / f"{_NAME}{digest.hexdigest()}"
        try:
            if not _is_own_directory(parent):
                continue
            _hold(target)
            if not (target / "__main__.py").exists():
                _stage(sources, target)
        except OSError:
            continue
        if _is_ours(target):
            return target
    raise ServerError(
        "no directory to stage the model runner in: set XDG_CACHE_HOME to one that this user can write and execute from, and "
        "that no other user can change"
    )


def remove_unused_bundles(bundle: Path) -> None:
    """Remove the directories of other versions beside one, unless a server uses them or did so a short while ago. Blocking.

    Directories without a lock file stay: a server that is still running may have made them.
    """
    oldest_s = time.time() - UNUSED_S
    with suppress(OSError):
        for entry in list(os.scandir(bundle.parent)):
            path = Path(entry.path)
            with suppress(OSError):
                if entry.name.startswith(_DRAFT) and entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                    shutil.rmtree(path)
                elif entry.name.startswith(_NAME) and entry.name.endswith(_LOCK) and path != _lock_of(bundle):
                    _remove_unused(path, oldest_s)


def _remove_unused(lock_file: Path, oldest_s: float) -> None:
    if lock_file.stat(follow_symlinks=False).st_mtime >= oldest_s:
        return
    lock = FileLock(lock_file)
    try:
        if lock.take_alone():
            target = lock_file.with_suffix("")
            if target.exists():
                # Out of the way first: a crash then leaves a draft, not an incomplete directory.
                rubbish = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=target.parent))
                target.rename(rubbish / target.name)
                shutil.rmtree(rubbish)
            lock_file.unlink(missing_ok=True)
    finally:
        lock.release()


def _lock_of(target: Path) -> Path:
    return target.with_name(target.name + _LOCK)


def _hold(target: Path) -> None:
    """Take a shared lock on a directory that may not exist yet, and note the time."""
    if target in _held:
        return
    with suppress(OSError):  # where no lock can be made, nobody can remove anything
        lock = FileLock(_lock_of(target))
        patience = threading.Timer(_LONGEST_WAIT_S, (late := threading.Event()).set)
        if not lock.take_shared():
            patience.start()
            lock.wait_shared(late)
            patience.cancel()
        _held[target] = lock
        os.utime(_lock_of(target))


def _sources() -> list[tuple[str, Path]]:
    """Return every file of the bundle as (name inside it, path)."""
    found: list[tuple[str, Path]] = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ServerError(
                f"package {package} is missing: this installation of pybackend is incomplete, reinstall it"
            )
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(root)
            if _NOT_STAGED not in relative.parts:
                found.append((f"{package}/{relative.as_posix()}", path))
    # Beside the SDK, not at the first place on the host's search path: authors keep copies of that module in projects.
    folder = next(path for name, path in found if name == "pybackend_sdk/__init__.py").parents[1]
    for module in _MODULES:
        path = folder / f"{module}.py"
        if not path.is_file():
            raise ServerError(f"module {module} is missing: this installation of pybackend is incomplete, reinstall it")
        found.append((path.name, path))
    return found


def server_directories() -> list[Path]:
    """Return the places for a server's own directory, the best first.

    Bundles in it are permanent, so a crash leaves no rubbish.
    """
    chosen = os.environ.get("XDG_CACHE_HOME")
    # The superuser's home directory is closed to other users, and models' processes may run as others.
    usual = Path("/var/cache") if os.getuid() == 0 else Path.home() / ".cache"
    return [(Path(chosen) if chosen else usual) / "pybackend", Path(tempfile.gettempdir()) / f"pybackend-{os.getuid()}"]


def _stage(sources: list[tuple[str, Path]], target: Path) -> None:
    """Fill a private directory and move it into place, because another host may be doing the same."""
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=target.parent))
    try:
        draft.chmod(0o755)
        for name, path in sources:
            copy = draft / name
            copy.parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(path, copy)
            py_compile.compile(
                str(copy),
                dfile=str(target / name),
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        (draft / "__main__.py").write_text(_MAIN)
        try:
            draft.rename(target)
        except OSError:
            if not (target / "__main__.py").exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_own_directory(path: Path) -> bool:
    """Make a server's own directory, and say whether it may be used.

    Where all users may write, another one may have made it, or a link of its name, and could replace what lies in it.
    Elsewhere it is the operator's: volumes of containers are often open to all users, of which there is one.
    """
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not path.parent.stat().st_mode & stat.S_IWOTH:
        return True
    return _is_trusted(path.lstat().st_uid) and _is_closed(path)


def _is_ours(target: Path) -> bool:
    """Whether only trusted users could have put code there: stubs will run it."""
    return _is_closed(target) and _is_closed(target / "__main__.py")


def _is_closed(path: Path) -> bool:
    status = path.stat()
    return _is_trusted(status.st_uid) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_trusted(uid: int) -> bool:
    return uid in {os.getuid(), 0}
