"""What can be said about the floor without an old interpreter: syntax, and that the linter guards it."""

import ast
import tomllib
from pathlib import Path

from tests.floor.environments import FLOOR

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("stub", "sdk") for path in (ROOT / folder).rglob("*.py"))


def test_syntax_of_the_oldest_interpreter():
    for path in SOURCES:
        ast.parse(path.read_text(), path, feature_version=FLOOR)


def test_the_linter_knows_the_floor():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    floor = f"py{FLOOR[0]}{FLOOR[1]}"
    assert settings["per-file-target-version"] == {"stub/**": floor, "sdk/**": floor}
