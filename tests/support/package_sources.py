"""Where this machine's pip finds packages, in the variables that ``pybackend pack`` reads; and what it has installed."""

import ast
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement

from pybackend.modelconfig.backends import recipe_of
from tests.floor.environments import Unavailable

_SETTING = re.compile(r"^(global|install|:env:)\.(find-links|index-url|extra-index-url)=(.*)$", re.MULTILINE)
_PRECEDENCE = ("global", "install", ":env:")


def sources_of_pip() -> dict[str, str]:
    """The directories and indexes that pip is configured with; empty for none, and where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings: dict[str, list[str]] = {}
    for _, name, value in sorted(_SETTING.findall(shown), key=lambda found: _PRECEDENCE.index(found[0])):
        settings[name] = ast.literal_eval(value).split()
    variables = {
        "UV_FIND_LINKS": ",".join(settings.get("find-links", [])),
        "UV_DEFAULT_INDEX": " ".join(settings.get("index-url", [])),
        "UV_INDEX": " ".join(settings.get("extra-index-url", [])),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # pip's: the best version of all indexes
    }
    return {name: value for name, value in variables.items() if value}


def installed_pins(backend: str) -> str:
    """Lines that pin the packages of a backend's recipe to the releases that this process has.

    Raises:
        Unavailable: one is not installed.
    """
    lines = recipe_of(backend).read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    names = [each.name for each in wanted if each.marker is None or each.marker.evaluate()]
    try:
        return "".join(f"{name}=={version(name)}\n" for name in names)
    except PackageNotFoundError as error:
        raise Unavailable(f"{error.name} is not installed here") from None
