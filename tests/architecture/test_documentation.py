"""What the documentation says about files, flags and code is so."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#\s]+)")
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def _name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page):
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_blocks_are_python(page):
    for _, code in BLOCK.findall(page.read_text()):
        try:
            ast.parse(textwrap.dedent(code))
        except SyntaxError as error:
            # A `return` on its own is a fair excerpt of a method.
            assert "outside function" in str(error), f"{error}:\n{code}"  # noqa: PT017  only this kind is excused


def test_flags_of_serve_are_all_documented_and_all_there():
    page = (ROOT / "docs" / "operators" / "serve.md").read_text()
    documented = set(re.findall(r"--[a-z][a-z-]+", page)) - {"--flag", "--help"}
    shown = subprocess.run(
        [sys.executable, "-m", "pybackend", "serve", "--help"], capture_output=True, text=True, check=True
    )
    present = set(re.findall(r"--[a-z][a-z-]+", shown.stdout)) - {"--help"}
    assert documented == present


def test_every_page_is_in_the_navigation():
    navigation = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert navigation == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
