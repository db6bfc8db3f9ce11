"""The clients of ``pybackend_bind``, by the names of PyTriton, with a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pybackend_bind import client as clients
from pybackend_bind.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pybackend_bind.decorators import batch, sample
from pybackend_bind.model_config import ModelConfig, Tensor
from pybackend_bind.triton import Triton, TritonConfig

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P15")]

PAIR = [Tensor((-1,), np.float32, "a"), Tensor((-1,), np.float32, "b")]
SUM = [Tensor((-1,), np.float32, "sum")]
GO_ON = threading.Event()


@batch
def add(a, b):
    if a.flat[0] < 0:
        GO_ON.wait()
    return {"sum": a + b}


@sample
def add_one(a, b):
    return [a + b]


@batch
def count(a):
    for number in range(int(a.flat[0])):
        yield {"sum": 0 * a + number}


@batch
def fail(a):
    raise RuntimeError("broken")


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    free = TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1", grpc_address="127.0.0.1")
    with Triton(config=free) as triton:
        triton.bind("add", add, PAIR, SUM)
        triton.bind("add_one", add_one, PAIR, SUM, config=ModelConfig(batching=False))
        triton.bind("count", count, PAIR[:1], SUM, config=ModelConfig(decoupled=True))
        triton.bind("fail", fail, PAIR[:1], SUM)
        triton.bind("scalar", lambda requests: [{"sum": np.array(1, np.float32)}] * len(requests), PAIR[:1], SUM)
        yield {"http": triton.addresses["http"], "grpc": f"grpc://{triton.addresses['grpc']}"}
        GO_ON.set()


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_inputs_by_position_and_by_name_as_samples_and_batches(addresses, protocol) -> None:
    with ModelClient(addresses[protocol], "add", lazy_init=False) as client:
        assert client.is_batching_supported
        config = client.model_config
        assert (config.model_name, config.max_batch_size, config.decoupled) == ("add", 4, False)
        assert [(each.name, each.shape, each.dtype) for each in config.inputs] == [
            ("a", (-1,), np.float32),
            ("b", (-1,), np.float32),
        ]
        assert client.infer_sample(ones(2), ones(2))["sum"].tolist() == [2, 2]
        assert client.infer_sample(b=ones(1), a=ones(1))["sum"].tolist() == [2]
        assert client.infer_batch(ones(3, 1), ones(3, 1))["sum"].tolist() == [[2]] * 3
        with ModelClient.from_existing_client(client) as same:
            assert same.infer_sample(ones(1), ones(1))["sum"].tolist() == [2]


def test_models_without_batching(addresses) -> None:
    with ModelClient(addresses["http"], "add_one", "1") as client:
        assert not client.is_batching_supported
        assert client.infer_sample(ones(2), ones(2))["sum"].tolist() == [2, 2]
        with pytest.raises(clients.PyTritonClientModelDoesntSupportBatchingError, match="use infer_sample"):
            client.infer_batch(ones(1, 2), ones(1, 2))


def test_streams(addresses) -> None:
    with DecoupledModelClient(addresses["grpc"], "count") as client:
        assert [each["sum"].tolist() for each in client.infer_sample(np.float32([2]))] == [[0], [1]]
    with pytest.raises(clients.PyTritonClientInvalidUrlError, match="streams need gRPC"):
        DecoupledModelClient(addresses["http"], "count")
    client = ModelClient(addresses["http"], "count")
    with client, pytest.raises(clients.PyTritonClientInferenceServerError, match="use DecoupledModelClient"):
        client.infer_sample(ones(1))


def test_futures(addresses) -> None:
    with FuturesModelClient(addresses["http"], "add", max_workers=4) as client:
        assert client.wait_for_model(60).result() is None
        assert client.model_config().result().model_name == "add"
        futures = [client.infer_sample(np.float32([number]), ones(1)) for number in range(8)]
        assert [future.result()["sum"].tolist() for future in futures] == [[number + 1] for number in range(8)]
        assert client.infer_batch(a=ones(2, 1), b=ones(2, 1)).result()["sum"].tolist() == [[2], [2]]
    with pytest.raises(clients.PyTritonClientClosedError):
        client.infer_sample(ones(1), ones(1))


def test_a_full_queue_of_futures_is_an_error_if_it_must_not_block(addresses) -> None:
    GO_ON.clear()
    with FuturesModelClient(addresses["http"], "add", max_workers=1, max_queue_size=1, non_blocking=True) as client:
        futures = [client.infer_sample(-ones(1), ones(1)) for _ in range(2)]
        with pytest.raises(clients.PyTritonClientQueueFullError):
            client.infer_sample(ones(1), ones(1))
        GO_ON.set()
        assert [future.result()["sum"].tolist() for future in futures] == [[0], [0]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_coroutines(addresses, protocol) -> None:
    async def asked() -> list[list[float]]:
        async with AsyncioModelClient(addresses[protocol], "add", lazy_init=False) as client:
            assert (await client.model_config).model_name == "add"
            both = await asyncio.gather(
                client.infer_sample(ones(1), ones(1)), client.infer_batch(a=ones(1, 1), b=ones(1, 1))
            )
            return [each["sum"].tolist() for each in both]

    assert asyncio.run(asked()) == [[2], [[2]]]


def test_streams_in_coroutines(addresses) -> None:
    async def asked() -> list[list[float]]:
        async with AsyncioDecoupledModelClient(addresses["grpc"], "count") as client:
            return [each["sum"].tolist() async for each in client.infer_sample(np.float32([2]))]

    assert asyncio.run(asked()) == [[0], [1]]


@pytest.mark.parametrize(
    ("model", "inputs", "error", "text"),
    [
        ("fail", {"a": ones(1)}, clients.PyTritonClientInferenceServerError, "RuntimeError: broken"),
        ("add", {"c": ones(1)}, clients.PyTritonClientValueError, "has no input 'c'"),
        ("add", {}, clients.PyTritonClientValueError, "pass at least one input"),
        ("add", {"a": ones(1), "headers": {"x": 1}}, clients.PyTritonClientValueError, "headers of a single request"),
    ],
)
def test_errors(addresses, model, inputs, error, text) -> None:
    with ModelClient(addresses["http"], model) as client, pytest.raises(error, match=text):
        client.infer_sample(**inputs)


def test_more_errors(addresses) -> None:
    with ModelClient(addresses["http"], "add") as client:
        with pytest.raises(clients.PyTritonClientValueError, match="by position or by name"):
            client.infer_sample(ones(1), b=ones(1))
        with pytest.raises(clients.PyTritonClientValueError, match="has 2 inputs, and got 3"):
            client.infer_sample(ones(1), ones(1), ones(1))
    with pytest.raises(clients.PyTritonClientClosedError):
        client.infer_sample(ones(1), ones(1))


def test_a_model_or_server_that_is_not_there(addresses) -> None:
    with (
        ModelClient(addresses["http"], "missing", init_timeout_s=0.01) as client,
        pytest.raises(clients.PyTritonClientTimeoutError, match=r"model 'missing' at .* was not ready within 0.01 s"),
    ):
        client.infer_sample(ones(1))
    client = ModelClient(addresses["http"], "missing", ensure_model_is_ready=False)
    with client, pytest.raises(clients.PyTritonClientModelUnavailableError, match="missing"):
        client.infer_sample(ones(1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ModelClient(f"localhost:{port}", "add", ensure_model_is_ready=False) as client:
        with pytest.raises(clients.PyTritonClientTimeoutError):
            client.infer_sample(ones(1))
        with pytest.raises(clients.PyTritonClientTimeoutError):
            client.wait_for_server(0.01)


def test_a_server_that_says_nothing_is_late() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ModelClient(f"localhost:{silent.getsockname()[1]}", "m") as client,
    ):
        for wait in (client.wait_for_server, client.wait_for_model):
            with pytest.raises(clients.PyTritonClientTimeoutError, match=r"was not ready within 0.1 s"):
                wait(0.1)


def test_an_output_without_samples_is_an_error(addresses) -> None:
    with ModelClient(addresses["http"], "scalar") as client:
        with pytest.raises(
            clients.PyTritonClientInferenceServerError, match=r"without a sample in output 'sum'.* \[\]"
        ):
            client.infer_sample(ones(1))
        assert client.infer_batch(ones(1, 1))["sum"].shape == ()


@pytest.mark.parametrize("url", ["", "ftp://localhost", "http://", "localhost:port", 3])
def test_wrong_urls(url) -> None:
    with pytest.raises(clients.PyTritonClientInvalidUrlError):
        ModelClient(url, "add")
