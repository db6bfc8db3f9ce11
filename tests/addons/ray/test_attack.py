"""A model, which may use the network, wants what belongs to Ray, to other replicas and to the entrance."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.addons.ray.conftest import Application, family, listening

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
METHODS = (
    NODES,
    "/ray.rpc.CoreWorkerService/PushTask",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.ReporterService/ReportOCMetrics",
    "/ray.serve.ASGIService/HandleRequest",
    "/inference.GRPCInferenceService/ServerReady",
)
"""One for each kind of port of Ray's processes, of replicas and of the coordinator."""


METRICS_OF_RAY = (44217, 44227)
"""Of its autoscaler and its dashboard, for this machine: counts, which nothing turns off."""


def told_by_model(application: Application, *orders: str) -> list[str]:
    with httpclient.InferenceServerClient(application.http) as client:
        order = httpclient.InferInput("ORDER", [len(orders)], "BYTES").set_data_from_numpy(np.array(orders, object))
        return [text.decode() for text in client.infer("spy", [order]).as_numpy("FOUND")]


@pytest.fixture
def ray_home(application: Application) -> Path:
    return Path(application.environment["HOME"]) / ".ray"


def test_a_model_without_the_token_gets_nothing_from_ray(application: Application, ray_home: Path) -> None:
    address = (ray_home / "pybackend" / "address").read_text()
    token = (ray_home / "auth_token").read_text().strip()
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(NODES)
        assert call(b"", metadata=[("authorization", f"Bearer {token}")], timeout=60)
    assert told_by_model(application, f"call {address} {NODES}") == ["UNAUTHENTICATED"]


def test_no_port_of_the_cluster_answers_a_model(application: Application) -> None:
    """Each refuses for lack of a token or a key: a port that the calls above do not fit fails the test."""
    entrance = {application.http_port, application.grpc_port, application.metrics_port, *METRICS_OF_RAY}
    ports = {
        port: process for port, process in listening(family(application.process.pid)).items() if port not in entrance
    }
    kinds = " ".join(ports.values())
    assert all(
        name in kinds for name in ("gcs_server", "raylet", "DashboardA", "RuntimeEnv", "ServeRepli", "python")
    ), kinds
    assert len(ports) >= 20
    found = told_by_model(application, *(f"knock 127.0.0.1:{port} {' '.join(METHODS)}" for port in ports))
    fine = ("401", "UNAUTHENTICATED", "UNAUTHENTICATED UNIMPLEMENTED")
    left = listening(family(application.process.pid))  # Ray ends processes that have nothing to do
    wrong = [(ports[port], text) for port, text in zip(ports, found, strict=True) if port in left and text not in fine]
    assert wrong == []


def test_a_model_cannot_use_the_sockets_of_the_entrance_and_of_ray(application: Application, ray_home: Path) -> None:
    """Models may be of the same user, and these sockets demand neither a key nor a token."""
    home = ray_home / "pybackend"
    sockets = [*home.glob("entrance-*/admin"), *home.glob("session_2*/sockets/*")]
    assert len(sockets) == 3, sockets
    found = told_by_model(application, *(f"connect {path}" for path in sockets))
    assert all(text.startswith("cannot") for text in found), found


def test_a_model_cannot_read_the_keys(application: Application, ray_home: Path) -> None:
    secrets = [
        ray_home / "auth_token",
        *(ray_home / "pybackend").glob("replica-*/key"),
        *(ray_home / "pybackend").glob("entrance-*/haproxy.cfg"),
    ]
    assert len(secrets) == 4
    found = told_by_model(application, *(f"read {path}" for path in secrets))
    assert all(text.startswith("cannot") for text in found), found


def test_a_model_cannot_call_other_replicas(application: Application) -> None:
    replicas = application.status()["replicas"]
    orders = [f"get http://{each['address']}:{each['http_port']}/v2/models/add_sub" for each in replicas]
    assert told_by_model(application, *orders) == ["401", "401"]
