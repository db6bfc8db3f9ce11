"""Writes the locks beside the recipes of backends: ``make locks``.

A lock is a requirements file: exact versions with hashes, for every CPython from :data:`OLDEST` on, on Linux with any
processor. pip and uv can install it too.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement

from pybackend.modelconfig.backends import backends_with_recipes, lock_of, recipe_of

OLDEST = "3.9"
"""The oldest CPython that a lock has versions for."""

_PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
_MACHINES = ("x86_64", "aarch64")

_HEADER = f"""\
# Exact versions of requirements.txt, for CPython {OLDEST} and newer on Linux. `make locks` writes this file.
"""


def write_lock(backend: str) -> None:
    """Look up the newest packages that the recipe of a backend allows, and write their versions and hashes."""
    recipe = recipe_of(backend).read_text(encoding="utf-8")
    # Models' processes use msgpack where they have it.
    pins = _compile(f"{recipe}\nmsgpack\n", "requirements.txt")
    hashes = _hashes(_compile(pins, "pylock.toml", "--no-deps"))
    lines = []
    for pin in filter(None, map(str.strip, pins.splitlines())):
        requirement = Requirement(pin)
        if not any(requirement.marker is None or requirement.marker.evaluate(place) for place in places()):
            continue
        name, version = requirement.name, str(requirement.specifier).removeprefix("==")
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in hashes[name, version])]) + "\n")
    lock_of(backend).write_text(_HEADER + "".join(lines), encoding="utf-8")


def places() -> Iterator[dict[str, str]]:
    """The values of markers on each Python and processor that a lock is for."""
    for python, machine in product(_PYTHONS, _MACHINES):
        yield {
            "python_version": python, "python_full_version": f"{python}.1", "platform_machine": machine,
            "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
            "implementation_name": "cpython", "platform_python_implementation": "CPython",
        }  # fmt: skip


def _compile(requirements: str, form: str, *flags: str) -> str:
    from uv import find_uv_bin

    command = [find_uv_bin(), "pip", "compile", "--quiet", "--universal", f"--python-version={OLDEST}"]
    command += ["--no-header", "--no-annotate", f"--format={form}", *flags, "-"]
    return subprocess.run(command, input=requirements, stdout=subprocess.PIPE, text=True, check=True).stdout


def _hashes(pylock: str) -> dict[tuple[str, str], list[str]]:
    """Of the files that Linux can install: wheels, or the source of packages without them."""
    found: dict[tuple[str, str], list[str]] = {}
    for package in tomllib.loads(pylock)["packages"]:
        wheels = [wheel for wheel in package.get("wheels", ()) if _fits(wheel["url"])]
        files = wheels or [package["sdist"]] if "sdist" in package else wheels
        digests = found.setdefault((package["name"], package["version"]), [])
        digests += [file["hashes"]["sha256"] for file in files]
    return {key: sorted(set(digests)) for key, digests in found.items()}


def _fits(url: str) -> bool:
    """Whether CPython on Linux installs a wheel, by the tags in its name."""
    python, _, platform = Path(url).stem.rsplit("-", 3)[1:]
    return python.startswith(("cp", "py")) and platform.startswith(("any", "linux", "manylinux"))


if __name__ == "__main__":
    for name in sys.argv[1:] or backends_with_recipes():
        write_lock(name)
        print(f"wrote {lock_of(name)}")  # noqa: T201  what the command is for
