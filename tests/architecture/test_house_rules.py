"""Rules that neither ruff nor mypy nor the import contracts can see."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).rglob("*.py"))
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def test_modules_are_named_after_what_they_hold():
    assert [str(path) for path in SOURCES if path.stem in VAGUE_NAMES] == []


def test_nothing_is_left_to_do():
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [str(path) for path in SOURCES if unfinished.search(path.read_text())] == []


def test_every_package_has_a_place_in_the_import_contracts():
    """The layers are exhaustive only while they name what exists."""
    text = (ROOT / "pyproject.toml").read_text()
    layers = re.findall(
        r'"([a-z0-9_| ]+)"', re.search(r'containers = \["pybackend"\].*?layers = \[(.*?)\]', text, re.DOTALL)[1]
    )
    named = {name.strip() for layer in layers for name in layer.split("|")}
    present = {
        path.stem
        for path in (ROOT / "host" / "pybackend").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert named == present


NO_SERVERS = {"cli", "client", "doctor", "importing", "pack"}
"""Parts of the host that run on no event loop of a server."""


def test_threads_and_processes_inherit_all_cores():
    """The thread of the event loop stays on one core at times: see ``pybackend.cores``."""
    host = ROOT / "host" / "pybackend"
    wrong = []
    for path in host.rglob("*.py"):
        if path.relative_to(host).parts[0] in NO_SERVERS or path.name == "cores.py":
            continue
        text = path.read_text()
        starts_thread = re.search(r"\b(Thread|ThreadPoolExecutor|ProcessPoolExecutor)\(", text)
        starts_process = re.search(r"\b(subprocess\.Popen|os\.fork|os\.posix_spawn|create_subprocess_\w+)\(", text)
        if starts_thread or (starts_process and "roam()" not in text):
            wrong.append(str(path))
    assert wrong == []
