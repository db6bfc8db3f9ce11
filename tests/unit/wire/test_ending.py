"""How a program has ended, on its way to the host."""

from __future__ import annotations

import pytest

from pybackend_wire.ending import Ending


@pytest.mark.parametrize("ending", [Ending(0, 0), Ending(-9, 3), Ending(None, 1)], ids=["well", "signal", "late"])
def test_it_comes_back_as_it_was(ending):
    assert Ending.from_json(ending.to_json().encode()) == ending


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{}", '{"status": "0", "left": 0}', '{"status": 0, "left": null}', b"\xff"],
    ids=list("abcdefg"),
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        Ending.from_json(text)
