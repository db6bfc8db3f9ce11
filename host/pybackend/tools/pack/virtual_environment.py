"""Copies the packages of a virtual environment into a copy of its interpreter."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pybackend.tools.pack.contents import walk
from pybackend.tools.pack.errors import UnpackableError
from pybackend.tools.pack.interpreter import Interpreter, probe
from pybackend.tools.pack.text_file import read_text

_LEFT_OUT = re.compile(
    r"^(pyvenv\.cfg|\.gitignore|\.lock|CACHEDIR\.TAG)$|^bin/(python[\d.]*|activate.*|Activate\.ps1|deactivate.*|pydoc\.bat)$"
    r"|(^|/)(_virtualenv\.(py|pth))$|\.pyc$"
)

_MOST_TEXT_BYTES = 4 * 1024 * 1024


def base_interpreter(prefix: Path) -> Interpreter:
    """The interpreter of a virtual environment.

    Raises UnpackableError if it does not start, or the environment includes the packages of its interpreter.
    """
    settings = dict(re.findall(r"^\s*([\w-]+)\s*=\s*(.*?)\s*$", read_text(prefix / "pyvenv.cfg"), re.MULTILINE))
    if settings.get("include-system-site-packages", "").lower() == "true":
        raise UnpackableError(
            f"{prefix} also shows the packages of {settings.get('home', 'its interpreter')} (include-system-site-packages), which would "
            "not be packed: create it without this option, or pack a requirements.txt"
        )
    found = probe(str(prefix / "bin" / "python"))
    if found is None:
        raise UnpackableError(
            f"the interpreter of {prefix}, {settings.get('home', 'which it does not name')}, does not start: create the environment again "
            "on this machine, or pack a requirements.txt"
        )
    return found


def copy_packages(prefix: Path, interpreter: Interpreter, tree: Path) -> None:
    """Copy everything but the interpreter; ``tree`` is a copy of the interpreter."""
    library = os.path.relpath(interpreter.standard_library, interpreter.prefix)
    own = re.compile(rf"^lib(64)?/python{re.escape(interpreter.minor)}t?/")
    old, new = os.fsencode(prefix), os.fsencode(tree)
    for name, path in walk(prefix):
        if _LEFT_OUT.search(name) or name == "lib64":
            continue
        target = tree / own.sub(f"{library}/", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            target.unlink()
        if os.path.islink(path):
            target.symlink_to(os.readlink(path))
            continue
        shutil.copy2(path, target)
        if os.path.getsize(target) <= _MOST_TEXT_BYTES:
            _rename_prefix(target, old, new)


def _rename_prefix(path: Path, old: bytes, new: bytes) -> None:
    """Replace the old directory by the new one in text files."""
    content = path.read_bytes()
    if old in content and b"\0" not in content:
        path.write_bytes(content.replace(old, new))
