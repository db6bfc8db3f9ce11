"""Lock file: pins the contents of an environment, so that the same one can be packed again."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from pybackend_tools.pack.errors import SpecificationError
from pybackend_tools.pack.scratch import draft_of
from pybackend_tools.pack.specification import read_text

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Lock:
    """The installed packages."""

    specification: str  # hash of the file that requested them
    platform: str
    python: str
    conda: list[dict[str, Any]]  # packages from conda channels, as described by their index
    wheels: list[str]  # lines of a requirements file, each with the hashes of its package

    def to_json(self) -> str:
        return json.dumps({"format_version": _FORMAT_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    def write(self, path: Path) -> None:
        with draft_of(path) as draft:
            draft.write(self.to_json().encode())


def read_lock(path: Path, specification: str, platform: str) -> Lock | None:
    """The lock in a file, None if the file does not exist."""
    if not path.exists():
        return None
    try:
        document = json.loads(read_text(path))
        if document.pop("format_version") != _FORMAT_VERSION:
            raise SpecificationError(f"{path} was written by another pybackend version: delete it to write a new one")
        lock = msgspec.convert(document, Lock)
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError):
        raise SpecificationError(f"{path} is not a lock written by pybackend: delete it to write a new one") from None
    if lock.specification != specification:
        raise SpecificationError(
            f"{path} was written for other packages, or for another --python or --extra: use the same ones, or "
            "delete it to write a new one"
        )
    if lock.platform != platform:
        raise SpecificationError(
            f"{path} is for {lock.platform}, and this machine is {platform}: pack there, or write another lock here"
        )
    return lock
