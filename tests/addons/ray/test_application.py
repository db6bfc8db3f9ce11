"""An application of two replicas answers as one server does, and as a whole."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import urllib.request
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.addons.ray.conftest import Application, children, processes, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, application: Application) -> Any:
    if request.param == "http":
        with httpclient.InferenceServerClient(application.http) as client:
            yield client
    else:
        with grpcclient.InferenceServerClient(application.grpc) as client:
            yield client


def module_of(client: Any) -> Any:
    return httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient


def add_sub_inputs(module: Any) -> list[Any]:
    return [
        module.InferInput(name, [4], "FP32").set_data_from_numpy(np.full(4, value, np.float32))
        for name, value in (("INPUT0", 3), ("INPUT1", 1))
    ]


def difference(client: Any) -> float:
    return float(client.infer("add_sub", add_sub_inputs(module_of(client))).as_numpy("OUTPUT1")[0])


def test_answers_as_one_server(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert difference(client) == 2.0
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        client.infer("nope", add_sub_inputs(module_of(client)))


def test_a_stream_is_answered(application: Application) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(application.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("add_sub", add_sub_inputs(grpcclient))
        found = [answers.get(timeout=60) for _ in range(3)]
        client.stop_stream()
    assert [error for _, error in found] == [None] * 3
    assert all(result.as_numpy("OUTPUT0")[0] == 4 for result, _ in found)


def test_a_sequence_stays_with_its_replica(client: Any) -> None:
    module = module_of(client)
    for sequence in range(1, 9):
        totals = []
        for number in range(1, 6):
            value = module.InferInput("VALUE", [1, 1], "INT32").set_data_from_numpy(np.array([[number]], np.int32))
            flags = {"sequence_id": sequence, "sequence_start": number == 1, "sequence_end": number == 5}
            totals.append(int(client.infer("accumulate", [value], **flags).as_numpy("TOTAL")[0, 0]))
        assert totals == [1, 3, 6, 10, 15]


@pytest.mark.parametrize("model", ["accumulate", "add_sub"])
def test_compressed_requests_are_refused_beside_sequences(application: Application, model: str) -> None:
    """The entrance cannot see whether they belong to one."""
    with grpcclient.InferenceServerClient(application.grpc) as client:
        for algorithm in ("gzip", "deflate"):
            with pytest.raises(InferenceServerException, match="send it without compression"):
                client.infer(model, add_sub_inputs(grpcclient), compression_algorithm=algorithm)


def test_shared_memory_of_clients_is_refused(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="each request may go to another machine"):
        client.register_system_shared_memory("region", "/region", 16)


def test_load_and_unload_reach_every_replica(application: Application, client: Any) -> None:
    client.unload_model("to_kelvin")
    states = [model["state"] for model in models_of(application) if model["name"] == "to_kelvin"]
    assert states == ["UNAVAILABLE"] * 2
    client.load_model("to_kelvin")
    states = [model["state"] for model in models_of(application) if model["name"] == "to_kelvin"]
    assert states == ["READY"] * 2
    with pytest.raises(InferenceServerException, match="there is no directory 'nope'"):
        client.load_model("nope")
    assert client.is_server_ready()


def models_of(application: Application) -> list[dict[str, str]]:
    return [model for replica in application.status()["replicas"] for model in replica["models"]]


def test_settings_reach_every_replica(client: Any) -> None:
    client.update_log_settings({"log_verbose_level": 1})
    other = 0
    for _ in range(4):
        settings = client.get_log_settings()
        other += (
            settings["log_verbose_level"]
            if isinstance(settings, dict)
            else settings.settings["log_verbose_level"].uint32_param
        )
    client.update_log_settings({"log_verbose_level": 0})
    assert other == 4


def test_statistics_are_sums(application: Application) -> None:
    with (
        httpclient.InferenceServerClient(application.http) as http,
        grpcclient.InferenceServerClient(application.grpc) as grpc,
    ):

        def count() -> int:
            return int(http.get_inference_statistics("add_sub")["model_stats"][0]["inference_count"])

        before = count()
        threads = [threading.Thread(target=lambda: [difference_of(application) for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count() == before + 20
        assert grpc.get_inference_statistics("add_sub").model_stats[0].inference_count == before + 20
    page = urllib.request.urlopen(f"http://127.0.0.1:{application.metrics_port}/metrics").read().decode()
    lines = [line for line in page.splitlines() if line.startswith("nv_inference_count{") and 'model="add_sub"' in line]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in lines) == before + 20
    assert len({line.partition('replica="')[2] for line in lines}) == 2


def difference_of(application: Application) -> float:
    with httpclient.InferenceServerClient(application.http) as client:
        return difference(client)


def test_replicas_refuse_callers_without_the_key(application: Application) -> None:
    replica = application.status()["replicas"][0]
    with (
        httpclient.InferenceServerClient(f"{replica['address']}:{replica['http_port']}") as client,
        pytest.raises(InferenceServerException, match="401"),
    ):
        client.get_server_metadata()
    with (
        grpcclient.InferenceServerClient(f"{replica['address']}:{replica['grpc_port']}") as client,
        pytest.raises(InferenceServerException, match="UNAUTHENTICATED"),
    ):
        client.get_server_metadata()


def test_servers_know_nothing_of_ray(application: Application) -> None:
    servers = application.servers()
    assert len(servers) == 2
    for pid in [*servers, *(child for server in servers for child in children(server))]:
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"RAY_" not in file.read()


def test_a_killed_server_is_replaced_with_its_models(application: Application) -> None:
    """The new one makes the changes that it has missed."""
    with httpclient.InferenceServerClient(application.http) as client:
        client.unload_model("to_kelvin")
        victim = application.servers()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in application.servers(), "the server has ended", application)
        wait_until(client.is_server_ready, "two replicas are ready", application)
        assert len(application.servers()) == 2
        assert [model["state"] for model in models_of(application) if model["name"] == "to_kelvin"].count("READY") == 0
        client.load_model("to_kelvin")
        assert difference(client) == 2.0


def test_a_killed_stub_needs_no_ray(application: Application) -> None:
    servers = application.servers()
    stub = next(pid for server in servers for pid in children(server) if "pybackend" in processes().get(pid, ""))
    os.kill(stub, signal.SIGKILL)
    with httpclient.InferenceServerClient(application.http) as client:
        wait_until(client.is_server_ready, "two replicas are ready", application)
    assert application.servers() == servers


def test_status_names_replicas_and_models(application: Application) -> None:
    found = application.status()
    assert found["ready"]
    assert len(found["replicas"]) == 2
    assert len(found["machines"]) == 1
    table = application.command("status", "--on=ray")
    assert "ready: 2 of 2 replicas" in table
    assert json.dumps(found)
