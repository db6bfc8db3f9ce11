"""Environments with this checkout's server on another CPython than the one that runs the tests."""

import subprocess
import sys
from pathlib import Path

from tests.floor.environments import Unavailable, interpreters
from tests.support.conda_channel import kept

ROOT = Path(__file__).resolve().parents[2]
OLDEST_MINOR = 11
"""The server runs on CPython 3.11 and newer."""

INSTALL_DEADLINE_S = 600


def server_python(minor: int) -> str:
    """An interpreter of version 3.``minor`` with the server's dependencies and, as a link, this checkout.

    Raises:
        Unavailable: it cannot be had.
    """
    base = interpreters()[minor]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    def make(directory: Path) -> None:
        _run(base, "-I", "-m", "venv", "--without-pip", str(directory))
        pip = (
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            str(directory / "bin" / "python"),
        )
        _run(*pip, "install", "--quiet", "--no-compile", "--editable", str(ROOT))

    return str(kept(f"server-3.{minor}", [base, ROOT, project], make) / "bin" / "python")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_DEADLINE_S)
    if done.returncode:
        last = ((done.stderr or done.stdout).strip() or "it said nothing").splitlines()[-1]
        raise Unavailable(f"the server cannot be installed with {command[0]}: {last}")
