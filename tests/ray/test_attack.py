"""A model, which may use the network, wants what belongs to Ray, to other replicas and to the entrance."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.ray.conftest import Application

pytestmark = [pytest.mark.ray, pytest.mark.thorough, pytest.mark.timeout(600)]

NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"


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
