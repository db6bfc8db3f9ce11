"""How to install more beside this installation of pybackend: a command that works where it is printed.

pybackend is in no package index, so its name alone installs nothing, or what a stranger has put there.
"""

import json
import os
import re
import shlex
import sys
from typing import Optional
from urllib.parse import unquote, urlsplit


def install_command(extra: str = "", pip: str = "") -> str:
    """The command, as code, that installs pybackend, or one of its extras, the way it came.

    pip writes down where a package came from: a clone, a wheel, a repository of git. If that is not known, or gone, the
    command installs the packages of the extra by their names; without any trace of an installation, it is for a clone.

    Args:
        extra: the optional dependency, such as ``onnx``.
        pip: how to call pip, if not by this interpreter: of another environment.
    """
    options = f"[{extra}]" if extra else ""
    source = _origin(options, is_here=not pip) or _packages(extra)
    if source is None:
        return f"`{pip or 'pip'} install {shlex.quote('.' + options)}` in a clone of pybackend"
    return f"`{pip or shlex.quote(sys.executable) + ' -m pip'} install {source}`"


def _origin(options: str, is_here: bool) -> Optional[str]:
    """The argument for pip that installs the same again with these options; None if nobody knows it, or if it is gone.

    Another environment gets a copy, even of a clone in which this one runs.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin = json.loads(distribution("pybackend").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return None
    url = str(origin.get("url", ""))
    place = urlsplit(url)
    if place.scheme == "file":
        path = unquote(place.path)
        editable = "--editable " if is_here and origin.get("dir_info", {}).get("editable") else ""
        return editable + shlex.quote(path + options) if os.path.exists(path) else None
    repository = origin.get("vcs_info", {})
    if repository:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return shlex.quote(f"pybackend{options} @ {url}") if url else None


def _packages(extra: str) -> Optional[str]:
    """The requirements of an extra as arguments for pip; None without one."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        stated = requires("pybackend") or []
    except PackageNotFoundError:
        return None
    of_extra = re.compile(rf"(.+?) *; *(?:\(?(.*?)\)? and )?extra == ['\"]{re.escape(extra)}['\"]")
    found = [match.groups() for match in map(of_extra.fullmatch, stated) if match]
    return " ".join(shlex.quote(f"{name}; {marker}" if marker else name) for name, marker in found) or None
