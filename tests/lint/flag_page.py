"""The tables of flags in the manual, written from the table of flags: ``python -m tests.lint.flag_page``."""

import re
from collections.abc import Iterator
from pathlib import Path

from pybackend.cli.flags import GROUPS, UNUSED
from pybackend.flag import Flag

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators" / "serve.md"

_ABOVE, _BELOW = "\nIn the groups of `pybackend serve --help`.\n\n", "\n## Start\n"
_FLAG = re.compile(r"(?<![\w`])--[a-z][a-z0-9-]+(=\S+)?")


def page() -> str:
    before, rest = PAGE.read_text().split(_ABOVE)
    _, after = rest.split(_BELOW)
    return f"{before}{_ABOVE}{chr(10).join(_lines())}{_BELOW}{after}"


def faults() -> Iterator[str]:
    """Say so if the page is another."""
    if page() != PAGE.read_text():
        yield f"{PAGE}: its tables are not those of pybackend.cli.flags: `make flags` writes them"


def _lines() -> Iterator[str]:
    for group in GROUPS:
        yield f"### {group.title[0].upper()}{group.title[1:]}\n"
        unused = group.flags is UNUSED
        if unused:
            yield "One warning at the start names those that were given.\n"
        yield "| Flag | Why |\n|---|---|" if unused else "| Flag | Default | Meaning |\n|---|---|---|"
        for flag in group.flags:
            if flag.name.startswith("--"):
                names = ", ".join(f"`{name}`" for name in flag.names)
                text = flag.page or _marked(flag.text)
                yield f"| {names} | {text} |" if unused else f"| {names} | {_default(flag)} | {text} |"
        yield ""


def _default(flag: Flag) -> str:
    shown = flag.shown_default
    is_value = shown != flag.default_text or shown in {"true", "false", *(flag.choices or ())}
    return f"`{shown}`" if shown and is_value else _marked(shown)


def _marked(text: str) -> str:
    """Text for the help as Markdown: flags are code."""
    return _FLAG.sub(r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(page())
