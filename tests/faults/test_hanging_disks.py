"""Disks that hang stop neither the event loop nor the server's end: models, logs, traces, keys and certificates on
them."""

import json
import signal
import threading

import pytest
import trustme

from tests.support.gates import wait_until
from tests.support.hanging_disk import hanging
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

BODY = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.fixture
def repository(tmp_path):
    for name in ("m", "other"):
        write_model(tmp_path / "models", name, IDENTITY, identity_config("TYPE_FP32", "[ -1 ]"))
    return tmp_path / "models"


def check_serves(server):
    """All that needs no disk is answered."""
    for _ in range(3):
        assert server.infer("m", BODY).status == 200
    assert server.get("/v2/health/ready").status == 200
    assert server.metrics()['nv_inference_count{model="m",version="1"}'] >= 3


@pytest.mark.thorough
def test_models_on_a_disk_that_hangs(repository):
    """The index shows what was there before and says so; loads wait without disturbing others; then all goes on."""
    flags = ("--model-control-mode=explicit", "--load-model=m")
    with serving(repository, flags=flags) as server:
        assert server.request("POST", "/v2/repository/index").status == 200
        with hanging(repository):
            loads = [
                threading.Thread(target=server.request, args=("POST", "/v2/repository/models/other/load", {}))
                for _ in range(20)
            ]
            for load in loads:
                load.start()
            for _ in range(3):
                m, other = server.request("POST", "/v2/repository/index").json
                assert (m["name"], m["state"]) == ("m", "READY")
                assert other["name"] == "other"
                assert other["reason"].startswith("a directory of models has not answered for 2 s; as it was at ")
            check_serves(server)
        for load in loads:
            load.join()
        wait_until(
            lambda: all("reason" not in row for row in server.request("POST", "/v2/repository/index").json),
            "the index to be up to date",
        )
        assert server.request("POST", "/v2/repository/models/other/load", {}).status == 200


@pytest.mark.thorough
def test_a_server_ends_while_its_models_disk_hangs(repository):
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serving(repository, flags=flags) as server, hanging(repository):
        server.request("POST", "/v2/repository/index")
        check_serves(server)
        assert server.stop() == 0


def test_logs_and_traces_on_a_disk_that_hangs(repository, tmp_path):
    place = tmp_path / "logs"
    place.mkdir()
    flags = (
        f"--trace-config=triton,file={place / 'trace.json'}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
        f"--log-file={place / 'log'}", "--log-access",
    )  # fmt: skip
    with serving(repository, flags=flags, ready=False) as server:
        wait_until(lambda: (place / "log").exists() and "models are ready" in (place / "log").read_text(), "the models")
        ports = {
            name: int((place / "log").read_text().partition(f"Started {name} at ")[2].split(":")[1].split('"')[0])
            for name in ("HTTPService", "Metrics Service")
        }
        with hanging(place):
            server.process.send_signal(signal.SIGHUP)  # the file is opened again, which hangs
            for _ in range(50):
                reply = server.request("POST", "/v2/models/m/infer", json.dumps(BODY), port=ports["HTTPService"])
                assert reply.status == 200
            assert server.request("GET", "/metrics", port=ports["Metrics Service"]).status == 200
            assert server.stop() == 0


def test_keys_and_certificates_on_a_disk_that_hangs(repository, tmp_path):
    place = tmp_path / "secrets"
    place.mkdir()
    (place / "keys").write_text("k" * 32)
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(place / "server.pem")
    issued.private_key_pem.write_to_path(place / "server.key")
    flags = (
        f"--api-key-file={place / 'keys'}", "--api-key-exempt=metrics", "--grpc-use-ssl",
        f"--grpc-server-cert={place / 'server.pem'}", f"--grpc-server-key={place / 'server.key'}",
    )  # fmt: skip
    with serving(repository, flags=flags, ready=False) as server:
        server.wait_for("models are ready")
        with hanging(place):
            server.process.send_signal(signal.SIGHUP)
            for _ in range(20):
                reply = server.request("POST", "/v2/models/m/infer", BODY, {"x-api-key": "k" * 32})
                assert reply.status == 200
            assert server.metrics()['nv_inference_count{model="m",version="1"}'] == 20
            assert server.stop() == 0
