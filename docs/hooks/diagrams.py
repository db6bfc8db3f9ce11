"""A hook of MkDocs: the site carries the script that draws its diagrams, and pages with diagrams load it from there.

Material for MkDocs loads mermaid from a server on the internet unless a page has it already. `make docs` fetches the
script from the npm registry into `build/`. Where it is not there, Material's way is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

SCRIPT = Path(__file__).resolve().parents[2] / "build" / "mermaid" / "mermaid.min.js"
URL = "assets/javascripts/mermaid.min.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the script to the files of the site."""
    if SCRIPT.exists():
        files.append(File.generated(config, URL, abs_src_path=str(SCRIPT)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001  MkDocs passes it
    """Load the script on pages that have diagrams, before Material looks for it."""
    if '<pre class="mermaid">' not in output or not SCRIPT.exists():
        return output
    return output.replace("</head>", f'<script src="{get_relative_url(URL, page.url)}"></script></head>', 1)
