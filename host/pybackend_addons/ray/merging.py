"""Statistics and metrics of several replicas as those of one server."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NEWEST = "last_inference"
"""The only number that is a moment: the others are counts and times."""

_NAMES = ("name", "version", "batch_size", "region")
"""The fields that tell the entries of a list apart."""

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S.*)")
_HELP, _TYPE = "# HELP ", "# TYPE "


def merged_statistics(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of the answers of several servers to the same question."""
    merged: dict[str, Any] = {}
    for document in documents:
        for name, value in document.items():
            merged[name] = _sum(name, merged[name], value) if name in merged else value
    return merged


def _sum(name: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return merged_statistics([one, other])
    if isinstance(one, list):
        return _joined(one, other)
    if isinstance(one, int | float) and name not in _NAMES:
        return max(one, other) if name == _NEWEST else one + other
    return one


def _joined(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """The entries of two lists, where those with the same name are one."""
    found: dict[Any, Any] = {}
    for entry in (*one, *other):
        key = tuple(str(entry.get(name)) for name in _NAMES) if isinstance(entry, dict) else str(entry)
        found[key] = merged_statistics([found[key], entry]) if key in found and isinstance(entry, dict) else entry
    return list(found.values())


def labelled(pages: Mapping[str, str]) -> str:
    """One metrics page of several, whose samples have the label ``replica``."""
    families: dict[str, list[str]] = {}
    for replica, page in pages.items():
        lines: list[str] = []
        for line in page.splitlines():
            found = _SAMPLE.fullmatch(line)
            if found:
                labels = f"{found['labels']}," if found["labels"] else ""
                lines.append(f'{found["name"]}{{{labels}replica="{replica}"}} {found["value"]}')
            elif line.startswith(_HELP):
                lines = families.setdefault(line.split(" ")[2], [line])
            elif line.startswith(_TYPE) and line not in lines[:2]:
                lines.append(line)
    return "\n".join([*(line for lines in families.values() for line in lines), ""])
