"""How a process is confined: what travels to it, and how a confined program has ended."""

from __future__ import annotations

import pytest

from pybackend_wire.confinement import STANDARD, STRICT, Confinement, Ending

PLAIN = Confinement(STANDARD, [("/usr", "rx"), ("/tmp", "rwx")], {"CORE": 0}, {}, {"uid": "why"})


def test_what_is_sent_is_what_arrives():
    sent = PLAIN._replace(uid=1000, network=False, variables={"A": "b", "C": None}, required=["files"])
    arrived = Confinement.from_json(sent.to_json())
    assert arrived.to_json() == sent.to_json()
    assert arrived._replace(paths=sent.paths) == sent  # JSON has lists where there were pairs


def test_environment_is_changed_where_something_is_said():
    changed = PLAIN._replace(variables={"HOME": "/scratch", "GONE": None, "NEVER": None})
    assert changed.environment({"HOME": "/root", "GONE": "x", "KEPT": "y"}) == {"HOME": "/scratch", "KEPT": "y"}


def test_nothing_is_inherited_where_it_is_scrubbed():
    scrubbed = PLAIN._replace(level=STRICT, scrubbed=True, variables={"PATH": "/usr/bin", "SECRET": None})
    assert scrubbed.environment({"SECRET": "x", "OTHER": "y"}) == {"PATH": "/usr/bin"}


@pytest.mark.parametrize("ending", [Ending(0, 0), Ending(-9, 3), Ending(None, 1)], ids=["well", "signal", "late"])
def test_an_ending_comes_back_as_it_was(ending):
    assert Ending.from_json(ending.to_json().encode()) == ending


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{}", '{"status": "0", "left": 0}', '{"status": 0, "left": null}', b"\xff"],
    ids=list("abcdefg"),
)
def test_anything_but_an_ending_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        Ending.from_json(text)
