"""Headers become request parameters on the routes of OpenAI and MLflow, too."""

import json

import pytest

from tests.e2e.access.conftest import TELL
from tests.support.repositories import tensors, write_model
from tests.support.server import serving


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    speaking = tmp_path_factory.mktemp("speaking")
    texts = (
        f"input [ {tensors(text_input=('TYPE_STRING', [1]))} ] output [ {tensors(text_output=('TYPE_STRING', [1]))} ]"
    )
    write_model(speaking, "says", TELL.replace("TOLD", "text_output"), f'backend: "python" {texts}')
    flags = ("--http-header-forward-pattern=^(x-user|priority)$", "--allow-openai", "--allow-mlflow")
    with serving(repository, speaking, flags=flags) as server:
        yield server


ROUTES = {
    "/v2/models/tell/invocations": ({"inputs": {"IN": [1.0]}}, lambda reply: reply.json["predictions"][0]),
    "/v1/completions": ({"model": "says", "prompt": "hi"}, lambda reply: reply.json["choices"][0]["text"]),
}


@pytest.mark.spec("srv-H37")
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_that_runs_a_model(server, route):
    body, text_of = ROUTES[route]
    reply = server.request("POST", route, body, {"X-User": "ann", "y-user": "no"})
    assert json.loads(text_of(reply)) == {"X-User": "ann"}
    refused = server.request("POST", route, body, {"x-user": "ann", "priority": "1"})
    assert refused.status == 400
    assert "Header 'priority' is reserved for Triton usage and cannot be forwarded." in refused.body.decode()
