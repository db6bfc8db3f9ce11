"""The page about the sandbox shows the attacks that the tests try, and the layers, users and options of the code."""

import ast
from pathlib import Path

from pybackend.modelconfig.options import sandbox_options_of
from pybackend.sandbox import users
from pybackend_wire.confinement import LAYERS
from tests.sandbox import attacks
from tests.sandbox.server_table import SERVER_GROUPS, server_rows
from tests.sandbox.table import ATTACKS, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operators" / "security.md").read_text()


def test_page_shows_every_attack():
    """The page's tables are what ``python -m tests.sandbox.server_table`` prints."""
    assert "\n".join([*rows(), *server_rows()]).rstrip() in PAGE


def test_every_attack_on_the_server_has_its_test():
    missing = []
    for _, attacks_of_group in SERVER_GROUPS.values():
        for attack in attacks_of_group:
            file, _, function = attack.test.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            if function not in names:
                missing.append(attack.test)
    assert missing == []


def test_every_attack_can_be_tried():
    assert all(callable(getattr(attacks, name, None)) for name in ATTACKS)


def test_page_names_every_layer():
    assert [layer for layer in LAYERS if f"`{layer}`" not in PAGE] == []


def test_page_names_the_users():
    first, few = users._RANGES
    assert f"{first} to {first + users.PER_SERVER * users._MOST_SERVERS - 1}" in PAGE
    assert f"{few} to {few + 4095}" in PAGE


def test_page_names_every_option():
    names = [
        name for name in sandbox_options_of.__code__.co_consts if isinstance(name, str) and name.startswith("SANDBOX")
    ]
    assert len(names) == 10
    assert [name for name in names if f"| `{name}` |" not in PAGE] == []
