"""The frame of a report: a page that needs no other file, and the files that it lies in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path

from pybackend.errors import ServerError

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { text-align: right; padding: 0.25rem 0.5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .text { text-align: left; }
pre { border: 1px solid var(--line); padding: 0.75rem; overflow-x: auto; }
figure { margin: 1.5rem 0; } svg { width: 100%; height: auto; background: #fff; border-radius: 4px; } figcaption { font-size: 0.9rem; }
.add { color: #1a7f37; } .gone { color: #cf222e; }
"""


def html_page(title: str, parts: Iterable[str]) -> str:
    """A page. ``title``: plain text. ``parts``: of HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def html_table(heads: Sequence[str], rows: Iterable[str]) -> str:
    """A table. ``rows``: of HTML."""
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def write_whole(path: Path, text: str) -> None:
    """Write a file, which is never seen half-written. Raises ServerError if that is impossible."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise ServerError(f"cannot write {path}: {error.strerror}") from None


def write_pages(directory: Path, page: str, table: str) -> Path:
    """Write ``report.html`` and ``results.csv``.

    Returns the first one's path; raises ServerError if that is impossible.
    """
    path = directory / "report.html"
    write_whole(path, page)
    write_whole(directory / "results.csv", table)
    return path
