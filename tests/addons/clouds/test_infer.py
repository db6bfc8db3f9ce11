"""Infer on a cloud's port answers as on the server's own, for each request of the tests of its forms."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.e2e.http.models import write_models
from tests.e2e.http.test_asgi_route import LIMIT, REQUESTS, ask
from tests.support.connection import post, post_chunked
from tests.support.server import ServerProcess, serving

REDIRECT = "X-Vertex-Ai-Triton-Redirect"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("clouds") / "models"
    write_models(models)
    flags = ("--allow-vertex-ai", "--vertex-ai-port=0", "--allow-http=true", f"--http-max-input-size={LIMIT}")
    routes = {"AIP_HEALTH_ROUTE": "/health", "AIP_PREDICT_ROUTE": "/predict"}
    with serving(models, flags=flags, env={**os.environ, **routes}) as server:
        yield server


REDIRECTED = {name: request for name, request in REQUESTS.items() if "%" not in request[0]}
"""Without those to encoded paths: a redirect is none."""


@pytest.mark.spec("srv-H45")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("model", "body", "headers"), REDIRECTED.values(), ids=REDIRECTED)
def test_both_ports_answer_alike(
    server: ServerProcess, model: str, body: bytes, headers: dict[str, str], chunked: bool
) -> None:
    path = f"/v2/models/{model}/infer"

    def request(path: str, **more: str) -> bytes:
        fields = {**headers, **more}
        return post_chunked(path, [body[:10], body[10:]], fields) if chunked else post(path, body, fields)

    own = ask(server.port, request(path))
    port = int(server.wait_for(r"Started Vertex AI HTTPService at \S+:(\d+)")[1])
    cloud = ask(port, request("/predict", **{REDIRECT: path}))
    assert (cloud.status, cloud.body) == (own.status, own.body)
