"""The clients of ``pybackend_bind``, by the names of PyTriton, with a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
from pybackend_bind.client.auth import create_auth_headers
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


def headers(requests):
    return [{"sum": np.float32([[float(request.parameters["x-number"])]])} for request in requests]


def header_stream(requests):
    yield headers(requests)


@batch
def paced(a):
    """Answers until so many seconds have passed, then waits."""
    until_s = time.monotonic() + float(a.flat[0])
    while time.monotonic() < until_s:
        yield {"sum": a}
        GO_ON.wait(0.1)
    yield {"sum": -a}
    if a.flat[0] < 0:
        GO_ON.wait()


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    free = TritonConfig(http_port=0, grpc_port=0, metrics_port=0, http_address="127.0.0.1", grpc_address="127.0.0.1")
    free.http_header_forward_pattern = free.grpc_header_forward_pattern = "x-.*"
    with Triton(config=free) as triton:
        triton.bind("headers", headers, PAIR[:1], SUM)
        triton.bind("header_stream", header_stream, PAIR[:1], SUM, config=ModelConfig(decoupled=True))
        triton.bind("paced", [paced, paced], PAIR[:1], SUM, config=ModelConfig(decoupled=True))
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


def test_futures_without_limits_and_with_wrong_ones(addresses) -> None:
    with FuturesModelClient(addresses["http"], "add", max_workers=None, max_queue_size=None) as client:
        futures = [client.infer_sample(np.float32([number]), ones(1)) for number in range(8)]
        assert [future.result()["sum"].tolist() for future in futures] == [[number + 1] for number in range(8)]
    for name in ("max_workers", "max_queue_size"):
        with pytest.raises(ValueError, match=f"{name} is 0: it must be 1 or more, or None for no limit"):
            FuturesModelClient(addresses["http"], "add", **{name: 0})


def test_without_a_limit_each_request_has_a_thread(addresses) -> None:
    GO_ON.clear()
    with FuturesModelClient(addresses["http"], "add", max_workers=None, max_queue_size=1, non_blocking=True) as client:
        futures = [client.infer_sample(-ones(1), ones(1)) for _ in range(40)]
        GO_ON.set()
        assert [future.result()["sum"].tolist() for future in futures] == [[0]] * 40


HEADERS = {"headers": {"x-number": 7}}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_headers_of_a_request_are_carried(addresses, protocol) -> None:
    url = addresses[protocol]
    with ModelClient(url, "headers") as client, FuturesModelClient(url, "headers") as futures:
        assert client.infer_sample(ones(1), **HEADERS)["sum"].tolist() == [7]
        assert client.infer_batch(a=ones(1, 1), headers={"x-number": "8"})["sum"].tolist() == [[8]]
        assert futures.infer_sample(ones(1), **HEADERS).result()["sum"].tolist() == [7]

    async def asked() -> list[float]:
        async with AsyncioModelClient(url, "headers") as client:
            return (await client.infer_sample(ones(1), **HEADERS))["sum"].tolist()

    assert asyncio.run(asked()) == [7]


def test_headers_of_a_stream_are_carried(addresses) -> None:
    with DecoupledModelClient(addresses["grpc"], "header_stream") as client:
        assert [each["sum"].tolist() for each in client.infer_sample(ones(1), **HEADERS)] == [[7]]

    async def asked() -> list[list[float]]:
        async with AsyncioDecoupledModelClient(addresses["grpc"], "header_stream") as client:
            return [each["sum"].tolist() async for each in client.infer_sample(ones(1), **HEADERS)]

    assert asyncio.run(asked()) == [[7]]


def test_the_time_of_a_stream_is_for_each_response(addresses) -> None:
    url, limit_s = addresses["grpc"], 2
    longer, late = np.float32([1.2 * limit_s]), "has not answered within 2 s"
    GO_ON.clear()

    async def asked() -> list[list[float]]:
        async with AsyncioDecoupledModelClient(url, "paced", inference_timeout_s=limit_s) as client:
            *_, last = [each["sum"].tolist() async for each in client.infer_sample(longer)]
            answers = client.infer_sample(-ones(1))
            first = (await anext(answers))["sum"].tolist()
            with pytest.raises(clients.PyTritonClientTimeoutError, match=late):
                await anext(answers)
            return [last, first]

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(asyncio.run, asked())
        with DecoupledModelClient(url, "paced", inference_timeout_s=limit_s) as client:
            *_, last = [each["sum"].tolist() for each in client.infer_sample(longer)]
            answers = client.infer_sample(-ones(1))
            first = next(answers)["sum"].tolist()
            with pytest.raises(clients.PyTritonClientTimeoutError, match=late):
                next(answers)
    GO_ON.set()
    assert [last, first] == other.result() == [(-longer).tolist(), [1]]


def test_a_client_from_an_existing_one(addresses) -> None:
    async def asked() -> list[list[float]]:
        first = AsyncioModelClient(addresses["http"], "add", inference_timeout_s=50)
        async with first, AsyncioModelClient.from_existing_client(first) as client:
            found = [(await client.infer_sample(ones(1), ones(1)))["sum"].tolist()]
        first = AsyncioDecoupledModelClient(addresses["grpc"], "count")
        async with first, AsyncioDecoupledModelClient.from_existing_client(first) as client:
            return found + [each["sum"].tolist() async for each in client.infer_sample(ones(1))]

    assert asyncio.run(asked()) == [[2], [0]]


@pytest.mark.parametrize(("token", "protocol"), [("", "http"), ("t", "ftp")])
def test_a_token_that_cannot_be_sent_is_refused(token, protocol) -> None:
    with pytest.raises(ValueError, match=r"^(access_token is empty|the protocol is 'ftp')"):
        create_auth_headers(token, protocol)


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
        ("add", {"a": ones(1), "headers": {"x\n": 1}}, clients.PyTritonClientValueError, "the header 'x\n' has a line"),
        (
            "add",
            {"a": ones(1), "headers": ["x"]},
            clients.PyTritonClientValueError,
            "headers is a dictionary, not list",
        ),
        ("add", {"a": ones(1), "headers": {1: "x"}}, ValueError, "headers has 1: 'x': names are strings"),
        ("add", {"a": ones(1), "parameters": {"x": []}}, ValueError, r"parameters has 'x': \[\]: names are strings"),
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
