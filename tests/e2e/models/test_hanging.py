"""A model that hangs: ``pybackend stack``, ``pybackend top``, the metrics and the route."""

import http.client
import json
import re

import pytest

from pybackend.cli.commands import run
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

HANGS = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        self.fetch()

    def fetch(self):
        pass_gate(self.directory, "remote")
"""
)
BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with an idle model, and one that hangs for a client."""
    repository = tmp_path_factory.mktemp("hanging")
    directory = write_model(repository, "hanging", HANGS, identity_config())
    write_model(repository, "idle", IDENTITY, identity_config())
    with serving(repository, flags=("--http-restricted-api=trace:key=secret",)) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        client.request("POST", "/v2/models/hanging/infer", BODY)
        gate = Gate(directory, "remote")
        gate.wait_reached()
        yield server
        gate.open()
        client.getresponse().read()
        client.close()


@pytest.mark.around("pybackend_tools")
def test_the_stack_of_a_model(server, capsys):
    url = f"--url={server.url}"
    assert run(["stack", "hanging", url, "--header=key=secret"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = re.fullmatch(
        r"hanging_0, version 1: process (\d+) is ready and has run `execute` for \d+\.\d s, for 1 request", lines[0]
    )
    assert told is not None, lines[0]
    assert int(told[1]) in server.stub_pids()
    shown = [line.strip().rpartition("/")[2].split(" in ") for line in lines if "/hanging/1/model.py:" in line]
    assert [function for _, function in shown] == ["pass_gate", "fetch", "execute"]
    assert run(["stack", "idle", url, "--header=key=secret", "--json"]) == 0
    (idle,) = json.loads(capsys.readouterr().out)["instances"]
    assert (idle["instance"], idle["state"], idle["running"], idle["oldest_s"]) == ("idle_0", "ready", 0, 0)
    assert idle["stacks"]
    assert run(["stack", "nobody", url, "--header=key=secret"]) == 1
    assert capsys.readouterr().err == "error: Request for unknown model: 'nobody' is not found\n"
    # Where a program is tells much about it.
    assert run(["stack", "hanging", url]) == 1
    assert "This API is restricted" in capsys.readouterr().err


@pytest.mark.around("pybackend_tools")
def test_its_age_is_in_the_metrics_and_in_top(server, capsys):
    def figure(name, model):
        return server.metrics()[f'{name}{{model="{model}",version="1"}}']

    assert [figure("pybackend_executions_running", model) for model in ("hanging", "idle")] == [1, 0]
    assert figure("pybackend_oldest_execution_seconds", "idle") == 0
    before = figure("pybackend_oldest_execution_seconds", "hanging")
    wait_until(lambda: figure("pybackend_oldest_execution_seconds", "hanging") > before > 0, "it grows")
    metrics = f"--metrics-url=http://127.0.0.1:{server.metrics_port}"
    assert run(["top", "--once", "--interval=0.01", f"--url={server.url}", metrics]) == 0
    headings, hanging, idle = capsys.readouterr().out.splitlines()[-3:]  # above them: the server, and its front ends
    columns = headings.replace(" ms", "_ms").replace(" s", "_s").split()
    place = columns.index("RUNNING")
    assert columns[place : place + 2] == ["RUNNING", "OLDEST_s"]
    assert hanging.split()[place] == "1"
    assert hanging.split()[place + 1].isdigit()
    assert idle.split()[place : place + 2] == ["0", "-"]
