"""Pages of the manual: links lead somewhere, code is Python, diagrams are drawn, and every page can be found."""

import ast
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.support.durations import slowest_files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
    if "node_modules" not in path.parts
]

CODE = re.compile(r"`((?:pybackend|pybackend_\w+)(?:\.\w+)+)`")
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)")
PYTHON = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)


def faults() -> Iterator[str]:
    """What is wrong with pages, each with its place."""
    for page in PAGES:
        text = page.read_text()
        found = [*_links(page, text), *_anchors(page, text), *_python(text), *_diagrams(text)]
        yield from (f"{_name(page)}: {fault}" for fault in found)
    yield from _installs()
    yield from _changes()
    yield from _navigation()
    yield from _unreachable()
    yield from _glossary()
    yield from _slowest()


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _links(page: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(text):
        place = (page.parent / target).resolve()
        if not place.exists():
            yield f"links to {target}, which is not there"
        elif page.is_relative_to(DOCS) and not place.is_relative_to(DOCS):
            yield f"links to {target}, which is not part of the site: write its path as code"


def _anchors(page: Path, text: str) -> Iterator[str]:
    for path, anchor in ANCHOR.findall(text):
        target = page.parent / path if path else page
        if target.exists() and anchor not in _headings(target):
            yield f"links to {target.name}#{anchor}, which has no such heading"


def _headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _python(text: str) -> Iterator[str]:
    for _, code in PYTHON.findall(text):
        try:
            ast.parse(textwrap.dedent(code))
        except SyntaxError as error:
            if "outside function" not in str(error):  # a `return` alone is a fair excerpt of a method
                yield f"{error}:\n{code}"


def _diagrams(text: str) -> Iterator[str]:
    """Mermaid ends a statement at a semicolon, and shows the whole diagram as text."""
    for diagram in DIAGRAM.findall(text):
        yield from (f"a semicolon in a diagram: {line}" for line in diagram.splitlines() if ";" in line)


def _installs() -> Iterator[str]:
    """pybackend is in no package index yet; the program's own advice is for those who have installed it already."""
    quotes_the_program = {DOCS / "operators" / "commands.md", ROOT / "CHANGELOG.md"}
    for page in PAGES:
        if page not in quotes_the_program and re.search(r"pip install '?pybackend", page.read_text()):
            yield f"{_name(page)}: install extras from the clone: pip install '.[EXTRA]'"


def _changes() -> Iterator[str]:
    targets = LINK.findall(runpy.run_path(str(DOCS / "hooks" / "changelog.py"))["changes"]())
    for target in targets:
        if not (DOCS / target).exists():
            yield f"CHANGELOG.md: on the site, its link to {target} leads nowhere"


def _navigation() -> Iterator[str]:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    present = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    yield from (f"mkdocs.yml: the navigation lacks {page}" for page in sorted(present - listed))
    yield from (f"mkdocs.yml: the navigation lists {page}, which is not there" for page in sorted(listed - present))


def _unreachable() -> Iterator[str]:
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.exists():
            reached.add(page)
            linked = ((page.parent / target).resolve() for target in LINK.findall(page.read_text()))
            waiting += [target for target in linked if target.suffix == ".md" and target.is_relative_to(DOCS)]
    for page in sorted(set(DOCS.rglob("*.md")) - reached):
        yield f"{_name(page)}: no links lead from docs/index.md to it"


def _glossary() -> Iterator[str]:
    page = (DOCS / "architecture" / "glossary.md").read_text()
    rows = re.findall(r"^\|.*\| ([^|]*) \|$", page, re.MULTILINE)
    places = [place for row in rows for place in CODE.findall(row)]
    if not places:
        yield "docs/architecture/glossary.md: no row names a module"
    yield from (f"docs/architecture/glossary.md: there is no {place}" for place in places if not _exists(place))


def _slowest() -> Iterator[str]:
    for name in slowest_files():
        if not (ROOT / name).exists():
            yield f"tests/README.md: the table of the slowest files names {name}, which is not there"


def _exists(place: str) -> bool:
    """True for a module in the sources, or a name that one binds at its top level."""
    package, *names = place.split(".")
    path = next(ROOT / top / package for top in ("host", "stub", "sdk") if (ROOT / top / package).exists())
    for name in names:
        if path.is_dir() and (path / name).is_dir():
            path /= name
        elif path.is_dir() and (path / f"{name}.py").exists():
            path /= f"{name}.py"
        else:
            bound = rf"^(?:class |def )?{name}\b"
            return path.is_file() and re.search(bound, path.read_text(), re.MULTILINE) is not None
    return True
