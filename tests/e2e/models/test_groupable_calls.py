"""Models that call each other through the server although they could share a process: who is told, and when nobody is."""

import json

import pytest

from pybackend.cli.commands import run
from tests.support.gates import wait_until
from tests.support.groupable import ONE, calling, write_pair
from tests.support.repositories import IDENTITY, alone
from tests.support.server import serving

pytestmark = alone

SLOW = IDENTITY.replace("def execute(self, requests):", "def execute(self, requests):\n        time.sleep(0.002)")
GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "both" } }'
SAID = r"model 'calls_step' calls 'step' \d+ times a second, .* With the same PROCESS_GROUP"
FAMILY = 'pybackend_groupable_calls_total{called="step",caller="calls_step"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("groupable")
    write_pair(repository, "step", IDENTITY)
    write_pair(repository, "slow", SLOW)
    write_pair(repository, "checked", IDENTITY, 'parameters { key: "VALIDATE_OUTPUTS" value { string_value: "yes" } }')
    write_pair(repository, "grouped", IDENTITY, both=ONE + GROUP)
    with serving(repository) as server:
        yield server


@pytest.mark.around("pybackend_tools")
def test_models_that_could_share_a_process_are_named_once(server, capsys):
    flags = ("--interval=1", f"--url={server.url}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}")
    with calling(server, "calls_step"):
        said = server.wait_for(SAID)[0]
        assert server.metrics()[FAMILY] >= 1000
        assert run(["top", "--json", *flags]) == 0
        (advice,) = json.loads(capsys.readouterr().out)["groupable"]
        assert run(["top", "--once", *flags]) == 0
        assert "model 'calls_step' calls 'step' " in capsys.readouterr().out.splitlines()[1]
    assert "a crash of one of them ends both" in server.output
    assert server.output.count("With the same PROCESS_GROUP") == 1, said
    assert (advice["caller"], advice["called"]) == ("calls_step", "step")
    assert advice["saved_cores"] == pytest.approx(advice["calls_per_s"] * 0.0004)
    assert run(["top", "--json", "--interval=0.01", *flags[1:]]) == 0
    assert json.loads(capsys.readouterr().out)["groupable"] == []


@pytest.mark.thorough
def test_nothing_is_said_of_models_that_would_save_little_or_cannot(server):
    """The called model computes for longer, its requests need the server, or both share a process already."""
    made = [f'nv_inference_request_success{{model="{model}",version="1"}}' for model in ("slow", "checked", "grouped")]
    with calling(server, "calls_slow", "calls_checked", "calls_grouped", "calls_step"):
        wait_until(lambda: min(map(server.metrics().get, made)) > 1100, "the models were not called")
        before = server.metrics()[FAMILY]
        wait_until(lambda: server.metrics()[FAMILY] > before + 1000, "there was no further look")
    assert [name for name in server.metrics() if name.startswith("pybackend_groupable")] == [FAMILY]
    assert server.output.count("With the same PROCESS_GROUP") == 1
