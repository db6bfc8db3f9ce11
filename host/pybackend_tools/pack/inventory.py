"""Installed packages of an environment, read from the records of installers."""

import json
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from pybackend.environment.manifest import PackedPackage
from pybackend_tools.pack.errors import UnpackableError
from pybackend_tools.pack.wheels import normalised


def conda_packages(prefix: Path) -> list[PackedPackage]:
    """Packages that conda installed into a conda environment."""
    found = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(path.read_bytes())
            found.append(PackedPackage(record["name"], str(record["version"]), record.get("channel") or ""))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def python_packages(site_packages: Iterable[Path]) -> list[PackedPackage]:
    """Installed Python packages, without those of conda, which are listed under their conda names."""
    found = {}
    for _, package in _distributions(site_packages):
        name, version = package.metadata["Name"], package.metadata["Version"]
        if name and version and _installer(package) != "conda":
            found[normalised(name)] = PackedPackage(name, version, str(_direct_url(package).get("url") or "pypi"))
    return list(found.values())


def installed_names(site_packages: Iterable[Path], installer: str) -> set[str]:
    """Normalised names of the packages that one installer has installed."""
    return {normalised(name) for name, package in _distributions(site_packages) if _installer(package) == installer}


def _distributions(site_packages: Iterable[Path]) -> Iterator[tuple[str, Distribution]]:
    """The records of installed packages, with the names of their directories."""
    for directory in site_packages:
        for path in sorted(directory.glob("*.dist-info")):
            yield path.name.partition("-")[0], Distribution.at(path)


def _installer(package: Distribution) -> str:
    return (package.read_text("INSTALLER") or "").strip()


def _direct_url(package: Distribution) -> dict[str, Any]:
    try:
        document = json.loads(package.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def refuse_editable(site_packages: Iterable[Path], what: object) -> None:
    """Check that every package is installed, not linked to its sources."""
    for directory in site_packages:
        names = [
            name
            for name, package in _distributions([directory])
            if _direct_url(package).get("dir_info", {}).get("editable") is True
        ]
        names += [path.stem for path in directory.glob("*.egg-link")]
        if not names:  # a package without a record may still have left the link
            names = [path.stem.removeprefix("__editable__.") for path in directory.glob("__editable__*.pth")]
        if names:
            raise UnpackableError(
                f"{what} has editable packages ({', '.join(sorted(set(names)))}), which are links to files of this machine: install "
                "them without -e"
            )
        _refuse_foreign_paths(directory, what)


def _refuse_foreign_paths(directory: Path, what: object) -> None:
    for path in sorted(directory.glob("*.pth")):
        for line in path.read_text(errors="replace").splitlines():
            added = line.strip()
            if added.startswith("/") and Path(added).exists():
                raise UnpackableError(
                    f"{what}: {path.name} puts {added} on the import path, which is outside of the environment and not packed: "
                    "install its contents into the environment"
                )
