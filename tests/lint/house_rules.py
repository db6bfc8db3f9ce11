"""Rules that neither ruff nor mypy nor the import contracts can see."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def faults() -> Iterator[str]:
    """What breaks a rule, each with its place."""
    yield from _names()
    yield from _unfinished()
    yield from _import_contracts()
    yield from _installations_by_name()


def _names() -> Iterator[str]:
    for path in SOURCES:
        if path.stem in VAGUE_NAMES:
            yield f"{path.relative_to(ROOT)}: name the module after what it holds"


def _unfinished() -> Iterator[str]:
    for path in SOURCES:
        for found in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text()):
            yield f"{path.relative_to(ROOT)}: {found}: finish it, or leave it out"


def _installations_by_name() -> Iterator[str]:
    """pybackend is in no package index: whoever takes the name there would be installed by such a command."""
    texts = [path for folder in ("docs", "deploy", "examples", "envs") for path in (ROOT / folder).rglob("*")]
    for path in (*SOURCES, *texts, ROOT / "README.md", ROOT / "Makefile"):
        if path.is_file() and re.search(rb"pip3? install(?: -\S+)* [\"']?pybackend(?![\w/.-])", path.read_bytes()):
            yield f"{path.relative_to(ROOT)}: say `pip install .` in a clone of pybackend, which is in no package index"


def _import_contracts() -> Iterator[str]:
    """The layers of the host are exhaustive only while they name what exists."""
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.search(r'containers = \["pybackend"\].*?layers = \[(.*?)\]', text, re.DOTALL)
    assert layers is not None
    named = {name.strip() for layer in re.findall(r'"([a-z0-9_| ]+)"', layers[1]) for name in layer.split("|")}
    present = {
        path.stem
        for path in (ROOT / "host" / "pybackend").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    yield from (f"pyproject.toml: the layers of the host lack {name!r}" for name in sorted(present - named))
    yield from (
        f"pyproject.toml: the layers of the host name {name!r}, which is gone" for name in sorted(named - present)
    )
