"""Installed packages of an environment, read from the records of installers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from pybackend.environment.manifest import PackedPackage
from pybackend.tools.pack.errors import UnpackableError
from pybackend.tools.pack.wheels import normalised


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
    for directory in site_packages:
        for path in sorted(directory.glob("*.dist-info")):
            package = _distribution(path)
            if package is not None:
                found[normalised(package.name)] = package
    return list(found.values())


def _distribution(path: Path) -> PackedPackage | None:
    try:
        if (path / "INSTALLER").is_file() and (path / "INSTALLER").read_text().strip() == "conda":
            return None
        headers = HeaderParser().parsestr(
            (path / "METADATA").read_text(encoding="utf-8", errors="replace"), headersonly=True
        )
    except OSError:
        return None
    name, version = headers["Name"], headers["Version"]
    return PackedPackage(name, version, _origin(path)) if name and version else None


def _origin(path: Path) -> str:
    document = _direct_url(path)
    return str(document.get("url") or "pypi")


def _direct_url(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / "direct_url.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def installed_names(site_packages: Iterable[Path], installer: str) -> set[str]:
    """Normalised names of the packages that one installer has installed."""
    return {
        normalised(path.name.split("-")[0])
        for directory in site_packages
        for path in directory.glob("*.dist-info")
        if (path / "INSTALLER").is_file() and (path / "INSTALLER").read_text().strip() == installer
    }


def refuse_editable(site_packages: Iterable[Path], what: object) -> None:
    """Check that every package is installed, not linked to its sources."""
    for directory in site_packages:
        names = [
            path.name.split("-")[0]
            for path in directory.glob("*.dist-info")
            if _direct_url(path).get("dir_info", {}).get("editable") is True
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
