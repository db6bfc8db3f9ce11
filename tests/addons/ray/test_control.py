"""Changes reach every replica, or the answer and the status name those that lag; also while a replica dies."""

from __future__ import annotations

import os
import signal

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.addons.ray.conftest import Application, wait_until
from tests.support.gates import GATE, Gate
from tests.support.repositories import write_model

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
SLOW_TO_LOAD = f"""
{GATE}
class TritonPythonModel:
    def initialize(self, args):
        pass_gate(args["model_repository"], "load")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
FOR_ONE = """
import os

class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists(os.path.join(args["model_repository"], "all")):
            return
        try:
            open(os.path.join(args["model_repository"], "taken"), "x").close()
        except FileExistsError:
            raise pb_utils.TritonModelException("another replica has it") from None

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def test_an_answer_and_the_status_name_the_replica_that_lags(application: Application) -> None:
    directory = write_model(application.models, "for_one", FOR_ONE, CONFIG)
    with httpclient.InferenceServerClient(application.http) as client:
        with pytest.raises(InferenceServerException, match="1 of 2 replicas did this, and others lag") as caught:
            client.load_model("for_one")
        lagging = str(caught.value).partition("and others lag. replica ")[2].split()[0]
        found = {each["name"]: each["lags"] for each in application.status()["replicas"]}
        assert [name for name, lags in found.items() if lags] == [lagging]
        assert "another replica has it" in found[lagging]
        assert "lags: /v2/repository/models/for_one/load: " in application.command("status", "--on=ray")
        assert not client.is_server_ready()
        (directory / "all").touch()
        client.load_model("for_one")
        assert client.is_server_ready()
        client.unload_model("for_one")
    assert [each["lags"] for each in application.status()["replicas"]] == ["", ""]


def test_a_load_goes_on_when_a_replica_dies_in_the_middle(application: Application) -> None:
    """The answer waits for those that live, and the replica that takes the place of the dead one catches up."""
    gate = Gate(write_model(application.models, "slow_to_load", SLOW_TO_LOAD, CONFIG), "load")
    with grpcclient.InferenceServerClient(application.grpc) as client:
        before = application.servers()
        with gate.holding(lambda: client.load_model("slow_to_load"), 2) as loading:
            os.kill(before[0], signal.SIGKILL)
            wait_until(lambda: before[0] not in application.servers(), "the server has ended", application)
            assert not loading.done()
        loading.result(timeout=120)
        wait_until(client.is_server_ready, "two replicas are ready", application)
        replicas = application.status()["replicas"]
        states = [row["state"] for each in replicas for row in each["models"] if row["name"] == "slow_to_load"]
        assert states == ["READY"] * 2
        assert len({each["generation"] for each in replicas}) == 1
        client.unload_model("slow_to_load")


def test_trace_settings_reach_a_replica_that_starts_later(application: Application) -> None:
    with (
        httpclient.InferenceServerClient(application.http) as http,
        grpcclient.InferenceServerClient(application.grpc) as grpc,
    ):
        http.update_trace_settings(settings={"trace_rate": "77"})
        grpc.update_trace_settings("add_sub", settings={"trace_count": "5"})
        victim = application.servers()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len({victim, *application.servers()}) == 3, "another server has started", application)
        wait_until(http.is_server_ready, "two replicas are ready", application)
        asked = [(http.get_trace_settings(), http.get_trace_settings("add_sub")) for _ in range(6)]
        assert [(one["trace_rate"], other["trace_rate"], other["trace_count"]) for one, other in asked] == [
            ("77", "77", "5")
        ] * 6
        http.update_trace_settings(settings={"trace_rate": None})
        http.update_trace_settings("add_sub", settings={"trace_count": None})
        assert grpc.get_trace_settings("add_sub").settings["trace_count"].value == ["-1"]
