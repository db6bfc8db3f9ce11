"""A hook of MkDocs: the page of changes is CHANGELOG.md, with links that lead to the pages of the site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

CHANGELOG = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  MkDocs passes them
    """Replace the text of the page ``changes.md``."""
    return changes() if page.file.src_uri == "changes.md" else markdown


def changes() -> str:
    """Return the changelog as a page of ``docs/``: its links start there."""
    return CHANGELOG.read_text().replace("](docs/", "](")
