"""The page about security shows the table that the attack tests are about."""

from __future__ import annotations

from pathlib import Path

from pybackend.modelconfig.sandbox import sandbox_options_of
from pybackend.sandbox import users
from pybackend_wire.confinement import LAYERS
from tests.sandbox import attacks
from tests.sandbox.table import ATTACKS, rows

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operators" / "security.md").read_text()


def test_page_shows_every_attack():
    assert "\n".join(rows()).rstrip() in PAGE


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
    assert len(names) == 9
    assert [name for name in names if f"| `{name}` |" not in PAGE] == []
