"""Lock file: pins the contents of an environment, so that the same one can be packed again."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pybackend.tools.pack.errors import SpecificationError, output_error
from pybackend.tools.pack.specification import read_text

_FORMAT_VERSION = 1
_TEXTS = ("specification", "platform", "python")


@dataclass(frozen=True)
class Lock:
    """The installed packages.

    ``specification``: hash of the file that requested them. ``conda``: packages from conda channels, as described by
    their index. ``wheels``: lines of a requirements file, each with the hashes of its package.
    """

    specification: str
    platform: str
    python: str
    conda: list[dict[str, Any]]
    wheels: list[str]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps({"format_version": _FORMAT_VERSION, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    def write(self, path: Path) -> None:
        """Write it to a file atomically."""
        draft = ""
        try:
            file, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            with os.fdopen(file, "w") as stream:
                stream.write(self.to_json())
            os.chmod(draft, 0o644)
            os.replace(draft, path)
        except OSError as error:
            if draft and os.path.exists(draft):
                os.unlink(draft)
            raise output_error(error, f"write {path}", path.parent) from None


def read_lock(path: Path, specification: str, platform: str) -> Lock | None:
    """The lock in a file, None if the file does not exist."""
    if not path.exists():
        return None
    try:
        document = json.loads(read_text(path))
        if document.pop("format_version") != _FORMAT_VERSION:
            raise SpecificationError(f"{path} was written by another pybackend version: delete it to write a new one")
        lock = _from_document(document)
    except (ValueError, TypeError, KeyError, AttributeError):
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


def _from_document(document: dict[str, Any]) -> Lock:
    texts, wheels, records = [document[name] for name in _TEXTS], document["wheels"], document["conda"]
    if not isinstance(wheels, list) or not all(isinstance(text, str) for text in (*texts, *wheels)):
        raise TypeError(wheels)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise TypeError(records)
    return Lock(**dict(zip(_TEXTS, texts, strict=True)), conda=records, wheels=wheels)
