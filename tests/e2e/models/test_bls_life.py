"""Calls before a model serves, after it has served, and while the server stops."""

import json
import os
import signal

import pytest

from tests.support.callers import HELPERS, ONE, caller, sender, write_caller, write_targets
from tests.support.gates import Gate
from tests.support.inference import infer
from tests.support.repositories import write_model
from tests.support.server import free_of_processes, serving

BLS_ONLY = "BLS is only supported during the 'execute' function."
SIMPLE = f"""
input [ {{ name: "IN" data_type: TYPE_FP32 dims: -1 }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} ]
{ONE}
"""
GATED = (
    HELPERS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [pb_utils.InferenceResponse([tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
"""
)
OUTSIDE = f"""
{HELPERS}

def attempt():
    return raised(call("double", IN=[1]).exec) + raised(call("double", IN=[1]).exec, decoupled=True)

imported = attempt()


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "IN", "data_type": "TYPE_FP32", "dims": [1], "optional": True}})
        TritonPythonModel.completing = attempt()
        return config

    def initialize(self, args):
        self.directory = args["model_repository"]
        self.initializing = attempt()

    def execute(self, requests):
        found = [imported, self.completing, self.initializing]
        return [pb_utils.InferenceResponse([tensor("OUT", [json.dumps(found)])]) for _ in requests]

    def finalize(self):
        with open(os.path.join(self.directory, "finalizing"), "w") as file:
            json.dump(attempt(), file)
"""
INITIALIZE = (
    HELPERS
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.response = call("double", IN=[1]).exec()
"""
)


@pytest.mark.spec("pb-B08")
def test_before_and_after_serving(tmp_path):
    write_targets(tmp_path, "double")
    config = f'backend: "python"\n{ONE}'
    output = 'output [ { name: "OUT" data_type: TYPE_STRING dims: 1 } ]'
    write_model(tmp_path, "outside", OUTSIDE, f"{config} {output}")
    write_model(tmp_path, "eager", INITIALIZE, config + SIMPLE.replace(ONE, ""))
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        found = json.loads(infer(server, "outside", {})["OUT"][0])
        server.wait_for(rf"failed to load 'eager' version 1: Internal: TritonModelException: {BLS_ONLY}")
        assert server.stop() == 0
    finalizing = json.loads((tmp_path / "outside/finalizing").read_text())
    for kind, message, *again in (*found, finalizing):
        assert kind == "TritonModelException"
        assert message.startswith(BLS_ONLY)
        assert again == [kind, message]


def test_calls_while_the_server_stops(tmp_path):
    """Whoever was taken before is served to the end, with all that needs."""
    directory = write_caller(tmp_path)
    write_targets(tmp_path, "double", "repeat")
    code = """
    pass_gate(state["directory"], "first")
    one = value(call("double", IN=[1]).exec())
    pass_gate(state["directory"], "second")
    return [one, [value(response) for response in call("repeat", IN=[2]).exec(decoupled=True)]]
    """
    first, second = Gate(directory, "first"), Gate(directory, "second")
    with serving(tmp_path) as server, first.holding(lambda: caller(server)(code)) as asked:
        pids = server.stub_pids()
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_for("Waiting for in-flight requests to complete")
        first.open()
        second.wait_reached()
        second.open()
        found = asked.result()
        assert server.wait() == 0
    assert found == [[2], [[0], [1], None]]
    assert free_of_processes(pids)


def test_a_call_that_is_under_way_when_the_time_to_stop_is_over(tmp_path):
    write_caller(tmp_path)
    gated = write_model(tmp_path, "gated", GATED, f'backend: "python"\n{SIMPLE}')
    code = "return seen(call('gated', IN=[1]).exec())"
    with (
        serving(tmp_path, flags=("--exit-timeout-secs=1",)) as server,
        Gate(gated, "execute").holding(lambda: sender(server)(code)) as asked,
    ):
        pids = server.stub_pids()
        assert server.stop() == 1
        answer = asked.result()
    assert free_of_processes(pids)
    assert answer.status != 200
