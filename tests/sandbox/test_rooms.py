"""What the server makes at run time for one model is out of the reach of all others, also where they share its user."""

import os
from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import arena
from tests.sandbox.test_model_control import FLAGS, NEW_CODE, OVERRIDES, Control, configuration
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

MODELS = {"victim": {"SANDBOX": "strict"}, "attacker": {"SANDBOX": "standard"}, "sneak": {"SANDBOX": "strict"}}


@pytest.fixture(scope="module", params=["root", *thorough("docker", "user", "kubernetes")])
def control(request):
    with arena(request.param, *FLAGS, OVERRIDES, models=MODELS) as host:
        host.server.wait_ready()
        yield Control(host)


@pytest.fixture(scope="module")
def scratch(control):
    """The private directory of the victim, with a file in it."""
    succeeded, text = control.host.ask("victim", ["fill_scratch"])["results"]["fill_scratch"]
    assert succeeded, text
    assert Path(text, "private").read_text() == "private"
    return text


@pytest.fixture(scope="module")
def brought(control):
    """The directory of a model that was loaded from files."""
    text = configuration()
    assert (
        control.call("attacker", "load_model", "new", text, files={**NEW_CODE, "file:1/weights": "private"}) == "None"
    )
    document = control.host.ask("new")
    return document["directory"]


@pytest.mark.parametrize("attack", ["read_scratch", "write_scratch", "replace_scratch", "list_rooms"])
@pytest.mark.parametrize("attacker", ["attacker", "sneak"])
def test_scratch_directories_are_private(control, scratch, attacker, attack):
    check(control, attacker, attack, scratch)
    assert sorted(os.listdir(scratch)) == ["private"]


@pytest.mark.parametrize("attack", ["read_scratch", "write_scratch", "replace_scratch", "list_rooms"])
@pytest.mark.parametrize("attacker", ["attacker", "sneak"])
def test_files_that_came_with_a_load_are_private(control, brought, attacker, attack):
    check(control, attacker, attack, brought)
    assert Path(brought, "1", "model.py").exists()


def check(control, attacker, attack, directory):
    control.host.context["scratch"] = directory
    succeeded, text = control.host.ask(attacker, [attack])["results"][attack]
    assert succeeded is False, f"{attack} by {attacker}: {text}"


def test_no_link_of_a_model_leads_the_server_to_remove_what_is_not_its(control, scratch):
    """The victim fills its own directory with links, and takes permissions away; the server removes that and nothing
    else."""
    target = Path(control.repository, "attacker", "1", "weights.txt")
    control.host.context["link_to"] = str(target.parent)
    succeeded, text = control.host.ask("victim", ["booby_trap"])["results"]["booby_trap"]
    assert succeeded, text
    control.host.server.stop()
    assert not os.path.lexists(scratch)
    assert not os.path.lexists(os.path.dirname(scratch)), "the room is still there"
    assert target.read_text() == "weights"
