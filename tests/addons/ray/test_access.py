"""An entrance with TLS and API keys; Prometheus with one of these keys; and the end of the command while a request
runs."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, which

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
import trustme
from tritonclient.utils import InferenceServerException

from tests.addons.ray.conftest import EXAMPLES, Application, free_ports, running, wait_until
from tests.support.gates import GATE, Gate
from tests.support.repositories import write_model

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

KEY = "a-key-of-a-client"
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
WAITS = f"""
{GATE}
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "root.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "server.key")
    issued.cert_chain_pems[0].write_to_path(directory / "server.pem")
    (directory / "keys").write_text(f"{KEY}\n")
    return directory


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Application]:
    models = tmp_path_factory.mktemp("ray") / "models"
    copytree(EXAMPLES / "add_sub" / "model_repository" / "add_sub", models / "add_sub")
    write_model(models, "waits", WAITS, CONFIG)
    tls = [
        flag
        for service in ("http", "grpc")
        for flag in (f"--{service}-use-ssl", f"--{service}-server-cert={files / 'server.pem'}", f"--{service}-server-key={files / 'server.key'}")
    ]  # fmt: skip
    with running(
        models, "--replicas=2", f"--api-key-file={files / 'keys'}", "--api-key-exempt=health", *tls
    ) as started:
        yield started


@pytest.fixture
def clients(application: Application, files: Path) -> Iterator[tuple[object, object]]:
    context = lambda: ssl.create_default_context(cafile=str(files / "root.pem"))  # noqa: E731
    with (
        httpclient.InferenceServerClient(application.http, ssl=True, ssl_context_factory=context) as http,
        grpcclient.InferenceServerClient(application.grpc, ssl=True, root_certificates=str(files / "root.pem")) as grpc,
    ):
        yield http, grpc


def test_calls_over_tls_need_a_key_but_for_health(application: Application, clients: tuple[object, object]) -> None:
    for client, refusal in zip(clients, ("401", "UNAUTHENTICATED"), strict=True):
        assert client.is_server_ready()
        for headers in ({}, {"x-api-key": "wrong"}):
            with pytest.raises(InferenceServerException, match=refusal):
                client.load_model("add_sub", headers=headers)
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            client.load_model("add_sub", headers=headers)
            assert client.get_model_metadata("add_sub", headers=headers)
    with pytest.raises(OSError, match=r"closed|reset"):
        urllib.request.urlopen(f"http://{application.http}/v2/health/live", timeout=60)


@pytest.mark.skipif(which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_finds_each_replica(
    application: Application, clients: tuple[object, object], tmp_path: Path
) -> None:
    """It asks an entrance for the replicas, and reads the page of each there."""
    http, _ = clients
    module = httpclient
    inputs = [
        module.InferInput(name, [4], "FP32").set_data_from_numpy(np.ones(4, np.float32))
        for name in ("INPUT0", "INPUT1")
    ]
    for _ in range(8):
        http.infer("add_sub", inputs, headers={"x-api-key": KEY})
    metrics = f"127.0.0.1:{application.metrics_port}"
    (port,) = free_ports(1)
    access = {"type": "Bearer", "credentials": KEY}
    job = {
        "job_name": "pybackend",
        "scrape_interval": "1s",
        "authorization": access,
        "http_sd_configs": [
            {"url": f"http://{metrics}/metrics/targets", "refresh_interval": "1s", "authorization": access}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log,
        )  # fmt: skip

    def found(query: str) -> dict[str, float]:
        url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return {row["metric"]["replica"]: float(row["value"][1]) for row in json.load(answer)["data"]["result"]}
        except OSError:
            return {}

    replicas = {each["name"] for each in application.status()["replicas"]}
    try:
        wait_until(lambda: found("up") == dict.fromkeys(replicas, 1.0), "both replicas are read", application)
        wait_until(
            lambda: sum(found('nv_inference_request_success{model="add_sub"}').values()) == 8,
            "all requests are seen",
            application,
        )
        os.kill(application.servers()[0], signal.SIGKILL)
        wait_until(lambda: len(set(found("up")) - replicas) == 1, "the replica that replaces one is found", application)
    finally:
        process.kill()
        process.wait()


def test_the_port_for_metrics_needs_a_key(application: Application) -> None:
    for path in ("/metrics", "/metrics/targets", "/metrics/replicas/x", "/metrics/replicas/../../v2"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{application.metrics_port}{path}", timeout=60)
    asked = urllib.request.Request(
        f"http://127.0.0.1:{application.metrics_port}/metrics/replicas/x", headers={"x-api-key": KEY}
    )
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(asked, timeout=60)


def test_a_request_that_runs_is_answered_when_the_command_ends(application: Application, files: Path) -> None:
    gate = Gate(application.models / "waits", "execute")
    tensor = grpcclient.InferInput("IN", [1], "FP32").set_data_from_numpy(np.ones(1, np.float32))
    headers = {"x-api-key": KEY}
    with (
        grpcclient.InferenceServerClient(
            application.grpc, ssl=True, root_certificates=str(files / "root.pem")
        ) as client,
        gate.holding(lambda: client.infer("waits", [tensor], headers=headers)) as answer,
    ):
        application.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refusal_of(client, headers), "new requests are refused")
        assert "UNAVAILABLE" in refusal_of(client, headers)
        assert not answer.done()
    assert answer.result(timeout=60).as_numpy("OUT")[0] == 1


def refusal_of(client: grpcclient.InferenceServerClient, headers: dict[str, str]) -> str:
    try:
        client.get_model_metadata("add_sub", headers=headers)
    except InferenceServerException as error:
        return str(error)
    return ""
