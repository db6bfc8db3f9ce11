"""The routes of the protocol inside another web server, and a server among a running event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import requests
import uvicorn
from fastapi import FastAPI

import pybackend
from tests.support.gates import wait_until
from tests.support.repositories import copy_model, write_model
from tests.support.server import DEADLINE_S
from tests.support.streams import function, write_streams

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P14")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    copy_model(repository, "countdown_to")
    write_streams(repository, "streams")
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
    """
    tensor = '[ {{ name: "{}" data_type: TYPE_FP32 dims: [-1] }} ]'
    config = f'backend: "python"\ninput {tensor.format("IN")}\noutput {tensor.format("OUT")}'
    write_model(repository, "same", code, config)
    return repository


@contextmanager
def web_server(app: object) -> Iterator[str]:
    """uvicorn in a thread; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])))
        thread.start()
        try:
            wait_until(lambda: server.started, "uvicorn does not start")
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)


def test_a_tritonclient_talks_to_a_mounted_server(repository: Path) -> None:
    import tritonclient.http as tc

    server = pybackend.Server(model_repository=repository)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with server:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/own")
    async def own() -> list[float]:
        response = await server.model("same").async_infer(inputs={"IN": np.array([1, 2], np.float32)})
        return np.asarray(response.outputs["OUT"]).tolist()

    app.mount("/v2", server.asgi())
    app.mount("/models", server.asgi())
    with web_server(app) as url, tc.InferenceServerClient(url.removeprefix("http://")) as client:
        assert requests.get(f"{url}/own", timeout=DEADLINE_S).json() == [1, 2]
        assert client.is_server_ready()
        assert requests.get(f"{url}/v2", timeout=DEADLINE_S).json()["name"] == "triton"
        sent = tc.InferInput("IN", [300_000], "FP32")
        array = np.arange(300_000, dtype=np.float32)
        sent.set_data_from_numpy(array)
        np.testing.assert_array_equal(client.infer("same", [sent]).as_numpy("OUT"), array)
        with pytest.raises(tc.InferenceServerException, match="unknown model: 'nothing'"):
            client.infer("nothing", [sent])
        assert requests.get(f"{url}/models/v2/models/same", timeout=DEADLINE_S).json()["name"] == "same"
        reply = requests.post(f"{url}/v2/models/countdown_to/generate_stream", json={"IN": 3}, timeout=DEADLINE_S)
        assert reply.text.count('"OUT":3') == 3
    with pytest.raises(pybackend.UnavailableError, match=r"^the server is stopped"):
        server.live()


def test_at_the_root_of_a_web_server_every_call_of_a_client_works(repository: Path) -> None:
    import tritonclient.http as tc

    app = FastAPI()
    with pybackend.Server(model_repository=repository) as server:
        app.mount("/", server.asgi())
        with web_server(app) as url, tc.InferenceServerClient(url.removeprefix("http://")) as client:
            assert client.get_server_metadata()["name"] == "triton"
            assert client.get_model_metadata("same")["name"] == "same"


def test_a_mounted_server_that_is_not_started_answers_with_503(repository: Path) -> None:
    server = pybackend.Server(model_repository=repository)
    with web_server(server.asgi()) as url:
        reply = requests.get(f"{url}/v2/health/ready", timeout=DEADLINE_S)
        assert (reply.status_code, reply.json()["error"]) == (
            503,
            "the server is not started: call start(), or use it in a `with` block",
        )
        with server:
            assert requests.get(f"{url}/v2/health/ready", timeout=DEADLINE_S).status_code == 200
        assert requests.get(f"{url}/v2/health/ready", timeout=DEADLINE_S).status_code == 503


def test_the_callers_loop_runs_while_a_model_works(repository: Path) -> None:
    """A coroutine lets the model go on, so a blocked loop would be a deadlock."""
    path = repository / "streams/go_on"
    code = f"""
    import os
    while not os.path.exists({str(path)!r}):
        threading.Event().wait(0.01)
    sender.send(out(1), flags=FINAL)
    """

    async def main() -> None:
        async with pybackend.Server(model_repository=repository) as server:
            model = server.model("streams")
            waiting = asyncio.ensure_future(anext(model.async_infer(inputs={"CODE": function(code, takes="request")})))
            path.touch()
            assert np.asarray((await waiting).outputs["OUT"]).tolist() == [1]

    asyncio.run(main())
