"""Rules that neither ruff nor mypy nor the import contracts can see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).rglob("*.py"))
MOST_LINES = 500
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_holds_one_idea(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
    assert path.stem not in VAGUE_NAMES


def test_nothing_is_left_to_do():
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [str(path) for path in SOURCES if unfinished.search(path.read_text())] == []


def test_every_package_has_a_place_in_the_import_contracts():
    """The layers are exhaustive only while they name what exists."""
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.findall(
        r'"([a-z_| ]+)"', re.search(r'containers = \["pybackend"\].*?layers = \[(.*?)\]', text, re.DOTALL)[1]
    )
    named = {name.strip() for layer in layers for name in layer.split("|")}
    present = {
        path.stem
        for path in (ROOT / "host" / "pybackend").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert named == present
