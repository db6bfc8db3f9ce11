"""An application with two pools: clients need not know of them, and models call each other through them."""

from __future__ import annotations

import json
import os
import queue
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.addons.ray.conftest import Application, processes, running, wait_until
from tests.support.callers import write_caller, write_targets

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

FAR = ("double", "repeat", "far_caller")


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    models = tmp_path_factory.mktemp("pools") / "models"
    write_targets(models, "double", "repeat", "describe")
    write_caller(models, "caller")
    write_caller(models, "far_caller")
    pool = ",".join(("far", *(f"model={name}" for name in FAR), "replicas=2", "cpus=0.5"))
    with running(models, "--replicas=2", "--replica-cpus=0.5", f"--pool={pool}") as started:
        yield started


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, application: Application) -> Iterator[Any]:
    module, url = (httpclient, application.http) if request.param == "http" else (grpcclient, application.grpc)
    with module.InferenceServerClient(url) as found:
        yield found


def inputs(client: Any, value: Any, name: str = "IN", datatype: str = "FP32") -> list[Any]:
    module = httpclient if isinstance(client, httpclient.InferenceServerClient) else grpcclient
    array = np.array([value], np.float32 if datatype == "FP32" else np.object_)
    return [module.InferInput(name, [1], datatype).set_data_from_numpy(array)]


def doubled(client: Any, value: float, **options: Any) -> float:
    return float(client.infer("double", inputs(client, value), **options).as_numpy("OUT")[0])


def called(client: Any, code: str, model: str = "caller") -> Any:
    """What the code returns that a model of the default pool runs."""
    return json.loads(client.infer(model, inputs(client, code, "CODE", "BYTES")).as_numpy("JSON")[0])


def test_requests_find_the_pool_of_their_model(application: Application, client: Any) -> None:
    for number in range(8):
        assert doubled(client, number) == 2 * number
        assert called(client, f"return {number}") == number
        for model in ("double", "caller"):
            assert client.is_model_ready(model)
            assert "IN" in str(client.get_model_metadata(model))
            assert model in str(client.get_model_config(model))
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        client.infer("nope", inputs(client, 1))


def test_compressed_requests_need_the_path_of_http(application: Application) -> None:
    large = grpcclient.InferInput("IN", [1000], "FP32")  # a small one would stay as it is
    large.set_data_from_numpy(np.zeros(1000, np.float32))
    with (
        grpcclient.InferenceServerClient(application.grpc) as client,
        pytest.raises(InferenceServerException, match="send it without compression"),
    ):
        client.infer("double", [large], compression_algorithm="gzip")
    with httpclient.InferenceServerClient(application.http) as client:
        assert [doubled(client, number, request_compression_algorithm="gzip") for number in range(4)] == [0, 2, 4, 6]


def test_a_stream_goes_to_the_pool_of_its_first_request(application: Application) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    for _ in range(4):
        with grpcclient.InferenceServerClient(application.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("repeat", inputs(client, 3))
            found = [answers.get(timeout=60) for _ in range(3)]
            client.async_stream_infer("describe", [])
            _, refused = answers.get(timeout=60)
            client.stop_stream()
        assert [error for _, error in found] == [None] * 3
        assert "unknown model: 'describe'" in str(refused)


def test_models_call_those_of_other_pools(client: Any) -> None:
    assert called(client, "return value(call('double', IN=[1, 2]).exec())") == [2.0, 4.0]
    assert called(client, "return [value(each) for each in call('repeat', IN=[3]).exec(decoupled=True)]") == [
        [0.0],
        [1.0],
        [2.0],
        None,
    ]
    back = "return value(call('describe', ['OUT0']).exec(), 'OUT0')"
    assert "pybackend_path" in str(called(client, f"return value(call('far_caller', CODE=[{back!r}]).exec(), 'JSON')"))
    round_trip = "return failure(call('caller', CODE=['return 1']).exec())[1]"
    text = str(called(client, f"return value(call('far_caller', CODE=[{round_trip!r}]).exec(), 'JSON')"))
    assert "models of several pools would wait for each other: caller -> far_caller -> caller" in text


def test_control_reaches_the_pool_of_the_model(application: Application, client: Any) -> None:
    def states(name: str) -> list[str]:
        rows = [row for each in application.status()["replicas"] for row in each["models"]]
        return [row["state"] for row in rows if row["name"] == name]

    client.unload_model("double")
    assert states("double") == ["UNAVAILABLE"] * 2
    assert states("caller") == ["READY"] * 2
    assert called(client, "return failure(call('double', IN=[1]).exec())[0]") == "NOT_FOUND"
    client.load_model("double")
    assert states("double") == ["READY"] * 2
    assert client.is_server_ready()
    assert doubled(client, 2) == 4
    client.update_trace_settings("double", settings={"trace_rate": "77"})
    assert "77" in str(client.get_trace_settings("double"))
    client.update_log_settings({"log_verbose_level": 1})
    assert "1" in str(client.get_log_settings())
    client.update_log_settings({"log_verbose_level": 0})


def test_the_index_and_the_statistics_have_the_models_of_all_pools(application: Application, client: Any) -> None:
    names = {*FAR, "caller", "describe"}
    assert {
        name
        for name in names
        if f"'{name}'" in str(client.get_model_repository_index())
        or f'"{name}"' in str(client.get_model_repository_index())
    } == names
    statistics = str(client.get_inference_statistics())
    assert all(name in statistics for name in names)
    assert "double" in str(client.get_inference_statistics("double"))
    table = application.command("status", "--on=ray")
    assert "ready: 4 of 4 replicas (2 to 2 in default, 2 to 2 in far wanted)" in table
    with urllib.request.urlopen(f"http://127.0.0.1:{application.metrics_port}/metrics/targets") as response:
        assert sorted(each["labels"]["pool"] for each in json.load(response)) == ["default", "default", "far", "far"]


def servers_of(application: Application, pool: str) -> list[int]:
    """The pids of the servers of a pool."""
    ports = [f"--grpc-port={each['grpc_port']}" for each in application.status()["replicas"] if each["pool"] == pool]
    return [
        pid
        for pid, command in processes().items()
        if "-m pybackend serve" in command and any(port in command for port in ports)
    ]


def test_a_pool_whose_replicas_die_is_made_again(application: Application) -> None:
    """The other one answers meanwhile, and its models get a sentence for their calls."""
    call = "return seen(call('double', IN=[1]).exec())"
    with httpclient.InferenceServerClient(application.http) as client:
        assert called(client, call) == {"OUT": [2.0]}
        for pid in servers_of(application, "far"):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not client.is_server_ready(), "the pool is missing", application)
        with pytest.raises(InferenceServerException, match="no replica can take this request now: try again"):
            doubled(client, 1)
        kind, text = called(client, call)
        assert kind == "UNAVAILABLE"
        assert "pool 'far'" in text
        wait_until(client.is_server_ready, "all replicas are ready", application)
        wait_until(lambda: called(client, call) == {"OUT": [2.0]}, "calls find the new ones", application)
        assert doubled(client, 1) == 2
