"""Rules that neither ruff nor mypy nor the import contracts can see."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).rglob("*.py"))
MOST_LINES = 500
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def test_each_file_holds_one_idea():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
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


MOST_PRIVATES_IN_TESTS = 80
"""Uses of private names by tests: only ever fewer. Test through what a module offers; a test that cannot wants something
there that its callers would want as well."""

NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
INTERPRETERS = {"os", "sys"}


@pytest.mark.timeout(300)  # it reads every test and all of the stub
def test_tests_use_fewer_and_fewer_privates():
    shared = {name for path in (ROOT / "stub").rglob("*.py") for _, name in _privates_of_others(path)}
    used = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in _privates_of_others(path)
        # What the stub uses of the SDK is the contract between them, and private to models only.
        if name not in shared
    ]
    listed = "\n".join(used)
    assert len(used) <= MOST_PRIVATES_IN_TESTS, f"use what is public, and see what is new here:\n{listed}"
    assert len(used) == MOST_PRIVATES_IN_TESTS, f"fewer than before: set MOST_PRIVATES_IN_TESTS to {len(used)}"


def _privates_of_others(path):
    """Where a file takes a private name of something else than its own objects: ``(line, name)``."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    own = {getattr(node, "name", None) for node in nodes}
    own |= {node.attr for node in nodes if _is_set_on_self(node)}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner not in {"self", "cls"} | INTERPRETERS:
                names = [name]
            case ast.Attribute(value=value, attr=name) if not isinstance(value, ast.Name):
                names = [name]
            case ast.ImportFrom(module=str(module)) if module.startswith("pybackend"):
                names = [alias.name for alias in node.names]
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                names = [name]
            case _:
                continue
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in own | NAMED_TUPLES:
                yield node.lineno, name


def _is_set_on_self(node):
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
            return True
    return False
