"""``--log-file`` and ``--log-access``."""

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.e2e.observability.conftest import REQUEST, lines_of
from tests.support.gates import wait_until
from tests.support.repositories import identity_config, write_model
from tests.support.server import ServerProcess, serving


@pytest.mark.spec("srv-M15")
def test_a_file_has_all_lines_and_is_opened_again(models, tmp_path):
    path, moved = tmp_path / "server.log", tmp_path / "server.log.1"
    server = ServerProcess([models], f"--log-file={path}", "--log-format=ISO8601", "--allow-metrics=false")
    try:
        wait_until(lambda: any("model is ready in" in line for line in lines_of(path)), "the model")
        path.rename(moved)
        server.process.send_signal(signal.SIGHUP)
        wait_until(path.exists, "the new file")
        assert "opening the log file again" in lines_of(moved)[-1]
        assert server.stop() == 0
    finally:
        server.stop()
    assert server.output == ""
    assert "Signal (15) received." in lines_of(path)[0]
    everything = lines_of(moved) + lines_of(path)
    assert [line for line in everything if not re.match(r'\d{4}-\d\d-\d\dT[\d:]+Z [IWE] \d+ [^ ]+:\d+\] "', line)] == []


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(models, tmp_path):
    server = ServerProcess([models], f"--log-file={tmp_path}/none/server.log")
    assert server.wait() == 1
    assert server.output == (
        f"Error: --log-file={tmp_path}/none/server.log cannot be written: No such file or directory. Give a file in a "
        "directory that the server's user may write\n"
    )


def test_a_full_disk_is_reported_and_ends_nothing(models):
    with serving(models, flags=("--log-file=/dev/full", "--http-port=0"), ready=False) as server:
        server.wait_for(
            'W.*"the log file /dev/full cannot be written: No space left on device. Lines are lost until it can"'
        )
        assert server.process.poll() is None
        assert server.stop() == 0
        assert server.output.count("cannot be written") == 1


def access_lines(path: Path) -> list[dict]:
    return [each for each in map(json.loads, lines_of(path)) if "door" in each]


def test_the_access_log(models, tmp_path):
    path = tmp_path / "server.log"
    server = ServerProcess([models], f"--log-file={path}", "--log-format=json", "--log-access")
    try:
        wait_until(lambda: any("model is ready in" in line for line in lines_of(path)), "the model")
        started = [json.loads(line)["message"] for line in lines_of(path)]
        port, grpc_port = (
            int(re.search(rf"Started {name} at [0-9.]+:(\d+)", "\n".join(started))[1])
            for name in ("HTTPService", "GRPCInferenceService")
        )
        body = json.dumps(REQUEST)
        for method, target, sent, headers in (
            ("POST", "/v2/models/identity/infer", body, {}),
            ("POST", "/v2/models/identity/infer?x=secret", body, {}),
            ("POST", "/v2/models/none/infer", body, {}),
            ("POST", "/v2/models/identity/infer", iter([body.encode()[:9], body.encode()[9:]]), {}),  # in chunks
            ("GET", "/v2/health/live", None, {}),
        ):
            server.request(method, target, sent, headers, port=port)
        with grpc_client.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            assert client.is_server_live()
            with pytest.raises(grpc_client.InferenceServerException):
                client.get_model_metadata("none")
        wait_until(lambda: len(access_lines(path)) >= 7, "the access log")
        assert server.stop() == 0
    finally:
        server.stop()
    lines = access_lines(path)
    facts = [tuple(each[name] for name in ("door", "method", "path", "status", "received_bytes")) for each in lines]
    infer, service = "/v2/models/identity/infer", "/inference.GRPCInferenceService"
    assert facts == [
        ("http", "POST", infer, 200, len(body)),
        ("http", "POST", infer, 200, len(body)),
        ("http", "POST", "/v2/models/none/infer", 404, len(body)),
        ("http", "POST", infer, 200, len(body)),
        ("http", "GET", "/v2/health/live", 200, 0),
        ("grpc", "POST", f"{service}/ServerLive", "OK", 5),
        ("grpc", "POST", f"{service}/ModelMetadata", "NOT_FOUND", 11),
    ]
    assert lines[0]["sent_bytes"] > 50
    assert lines[4]["sent_bytes"] == len(b'{"live":true}')
    for each in lines:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", each["client"])
        assert 0 < each["duration_ms"] < 30_000
    assert re.fullmatch(
        rf"http 127\.0\.0\.1:\d+ POST {infer} 200 in={len(body)} out=\d+ [\d.]+ ms model=identity version=1",
        lines[0]["message"],
    )


SAYING = """
import asyncio, os

class TritonPythonModel:
    def execute(self, requests):
        print("printed")
        pb_utils.Logger.log_info("logged")
        if requests[0].inputs()[0].as_numpy()[0] < 0:
            raise ValueError("negative")
        if requests[0].inputs()[0].as_numpy()[0] > 1:
            os._exit(3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
ASYNC = SAYING.replace("def execute", "async def execute").replace("    print(", "    await asyncio.sleep(0); print(")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID = PARENT.split("-")[1]


def test_lines_name_the_request_its_trace_and_its_model(tmp_path):
    """Those of the access log, of models, asynchronous or not, and about deaths of models; also for failures, and over
    gRPC."""
    for name, code in (("plain", SAYING), ("overlapping", ASYNC)):
        write_model(tmp_path / "models", name, code, identity_config("TYPE_FP32", "[ -1 ]"))
    collecting = pytest.importorskip("tests.e2e.observability.collector").collecting
    with collecting() as collector:
        path = tmp_path / "log"
        flags = ("--log-format=json", "--log-access", f"--log-file={path}", "--trace-config=level=TIMESTAMPS")
        otel = (
            "--trace-config=mode=opentelemetry",
            f"--trace-config=opentelemetry,url={collector.url}",
            "--trace-config=rate=0",
        )
        server = ServerProcess([tmp_path / "models"], *flags, *otel)
        try:
            wait_until(lambda: any("models are ready" in line for line in lines_of(path)), "the models")
            port, grpc_port = (
                int(re.search(rf"Started {name} at [0-9.]+:(\d+)", path.read_text())[1])
                for name in ("HTTPService", "GRPCInferenceService")
            )
            tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}
            for model in ("plain", "overlapping"):
                for number in (1, -1, 2):
                    body = {"id": f"{model} {number}", "inputs": [tensor | {"data": [number]}]}
                    server.request("POST", f"/v2/models/{model}/infer", body, {"traceparent": PARENT}, port=port)
            server.request("POST", "/v2/models/plain/generate", {"IN": [1.0], "id": "generated"}, port=port)
            server.request("GET", "/v2/models/plain/versions/1/config", port=port)
            with grpc_client.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
                given = grpc_client.InferInput("IN", [1], "FP32")
                given.set_data_from_numpy(np.ones(1, np.float32))
                client.infer("plain", [given], request_id="over gRPC", headers={"traceparent": PARENT})
            wait_until(lambda: len(access_lines(path)) >= 9, "the access log")
            wait_until(lambda: path.read_text().count("_0' is restarted") == 2, "the restarts")
        finally:
            assert server.stop() == 0
    about = ("model", "version", "request_id", "trace_id")
    assert [tuple(each.get(name) for name in about) for each in access_lines(path)] == [
        *((model, "1", f"{model} {number}", TRACE_ID) for model in ("plain", "overlapping") for number in (1, -1, 2)),
        ("plain", "1", "generated", None),
        ("plain", "1", None, None),
        ("plain", "1", "over gRPC", TRACE_ID),
    ]
    assert access_lines(path)[0]["message"].endswith(
        f" ms model=plain version=1 request_id=plain 1 trace_id={TRACE_ID}"
    )
    loaded = [each for each in map(json.loads, lines_of(path)) if each["message"].startswith("successfully loaded")]
    assert {(each["model"], each["version"]) for each in loaded} == {("plain", "1"), ("overlapping", "1")}
    lines = [each for each in map(json.loads, lines_of(path)) if "instance" in each]
    assert {(each["model"], each["version"]) for each in lines} == {("plain", "1"), ("overlapping", "1")}
    for model in ("plain", "overlapping"):
        said = [each for each in lines if each["model"] == model and each["message"] == "logged"]
        assert [(each.get("request_id"), each.get("trace_id")) for each in said][:2] == [
            (f"{model} {number}", TRACE_ID) for number in (1, -1)
        ]
        failed, died = [each for each in lines if each["model"] == model and each["level"] == "ERROR"]
        assert (failed["request_id"], failed["trace_id"]) == (f"{model} -1", TRACE_ID)
        assert (died["instance"], died["request_id"], died["trace_id"]) == (f"{model}_0", f"{model} 2", TRACE_ID)
        assert f" and took 1 request (id {model} 2; trace {TRACE_ID}) with it. Restart 1 of" in died["message"]
        assert f"instance '{model}_0' is restarted" in [each["message"] for each in lines if each["model"] == model]
        assert all("request_id" not in each for each in lines if each["message"] == "printed")


def test_the_access_log_has_the_trace_of_each_request_whose_head_is_known_but_for_it(tmp_path):
    write_model(tmp_path / "models", "plain", SAYING, identity_config("TYPE_FP32", "[ -1 ]"))
    path = tmp_path / "log"
    server = ServerProcess([tmp_path / "models"], "--log-format=json", "--log-access", f"--log-file={path}")
    try:
        wait_until(lambda: any("model is ready" in line for line in lines_of(path)), "the models")
        port, grpc_port = (
            int(re.search(rf"Started {name} at [0-9.]+:(\d+)", path.read_text())[1])
            for name in ("HTTPService", "GRPCInferenceService")
        )
        traces = [f"{number:032x}" for number in range(1, 7)]
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
        for trace in traces:
            fields = {"traceparent": f"00-{trace}-{1:016x}-01"}
            assert server.request("POST", "/v2/models/plain/infer", body, fields, port=port).status == 200
        with grpc_client.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            given = grpc_client.InferInput("IN", [1], "FP32")
            given.set_data_from_numpy(np.ones(1, np.float32))
            for trace in traces:
                client.infer("plain", [given], headers={"traceparent": f"00-{trace}-{1:016x}-01"})
        wait_until(lambda: len(access_lines(path)) >= 2 * len(traces), "the access log")
    finally:
        assert server.stop() == 0
    assert [each.get("trace_id") for each in access_lines(path)] == traces * 2
