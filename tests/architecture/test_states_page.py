"""The page of states has the states, and the legal messages, of the code."""

import re
from pathlib import Path

import pytest

from pybackend.engine.engine import EngineState
from pybackend.frontend.http.connection import TRANSITIONS, State
from pybackend.instance.settings import InstanceState
from pybackend.model.model import ModelState
from pybackend_http2.stream import StreamState
from pybackend_wire.messages import LEGAL, StubMessage, StubState

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture" / "states.md").read_text()
PLACES = {
    "pybackend.engine.engine.EngineState": EngineState,
    "pybackend.frontend.http.connection.State": State,
    "pybackend_http2.stream.StreamState": StreamState,
    "pybackend.model.model.ModelState": ModelState,
    "pybackend.instance.settings.InstanceState": InstanceState,
    "pybackend_wire.messages.StubState": StubState,
}


def _rows(heading: str) -> dict[str, list[str]]:
    """The rows of the first table behind a place in the code: first cell, other cells."""
    table = re.search(r"\n\n((?:\|[^\n]*\n)+)", PAGE[PAGE.index(f"`{heading}`") :])
    assert table is not None, heading
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]
    return {first: rest for first, *rest in rows}


@pytest.mark.parametrize("place", PLACES)
def test_page_has_each_state(place):
    assert list(_rows(place)) == [state.name for state in PLACES[place]]


@pytest.mark.parametrize("place", ["pybackend.model.model.ModelState", "pybackend.instance.settings.InstanceState"])
def test_transitions_are_between_states(place):
    names = {state.name for state in PLACES[place]}
    for state, (_, origins) in _rows(place).items():
        named = set(re.findall(r"\b[A-Z_]{4,}\b", origins))
        assert named <= names, state
        assert named or origins in {"(new)", "any"}, state


def test_transitions_of_a_connection_are_those_of_the_code():
    shown = {
        state: set(re.findall(r"[A-Z]+", after))
        for state, (_, after) in _rows("pybackend.frontend.http.connection.State").items()
    }
    assert shown == {state.name: {each.name for each in TRANSITIONS[state]} for state in State}


def test_legal_messages_are_those_of_the_code():
    shown = {
        message.strip("`"): {state.strip() for state in states.split(",")}
        for message, (states,) in _rows("pybackend_wire.messages.LEGAL").items()
    }
    legal = {message.name: {state.name for state in StubState if message in LEGAL[state]} for message in StubMessage}
    assert shown == legal
