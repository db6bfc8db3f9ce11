"""The routes about the server itself: the last lines of its log, its settings and its processes, for callers with its
key."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pybackend.process.bundle import server_directories
from pybackend.process.diagnostics_key import HEADER
from tests.support.server import ServerProcess

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        print("hello from the model")

    def execute(self, requests):
        raise RuntimeError("this model is broken")
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            inputs = pb_utils.get_input_tensor_by_name(request, "X")
            pb_utils.InferenceRequest(model_name="broken", requested_output_names=["Y"], inputs=[inputs], trace=request.trace()).exec()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", inputs.as_numpy())]) for _ in requests]
"""
BODY = {"id": "mine", "inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
PATHS = [
    f"/v2/diagnostics/{name}"
    for name in ("log", "settings", "processes", "traces", "configuration?model=broken", "environment?model=broken")
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models: Path = tmp_path_factory.mktemp("models")
    for name, code in (("broken", MODEL), ("other", MODEL), ("caller", CALLER)):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.py").write_text(code)
        (models / name / "config.pbtxt").write_text(
            'backend: "python" input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
        )
    found = ServerProcess(
        [models],
        "--http-restricted-api=logging:admin-key=s3cret",
        "--trace-config=mode=memory",
    )
    found.wait_ready()
    yield found
    found.stop()


def test_the_log_of_a_model_has_its_lines_and_tracebacks(server: ServerProcess) -> None:
    server.infer("broken", BODY)
    lines = server.diagnostics("log?model=broken").json["lines"]
    assert any(line["text"] == "hello from the model" and line["instance"] == "broken_0" for line in lines)
    assert {line["model"] for line in lines} == {"broken"}
    everything = server.diagnostics("log").json["lines"]
    assert "other" in {line["model"] for line in everything}
    last = everything[-1]["number"]
    assert server.diagnostics(f"log?after={last + 10**6}").json["lines"], "the number is of an earlier server"
    assert all(line["number"] > last for line in server.diagnostics(f"log?after={last}").json["lines"])
    assert server.diagnostics("log?after=-1x").status == 200


def test_settings_have_no_secrets(server: ServerProcess) -> None:
    reply = server.diagnostics("settings")
    rows = {row["name"]: row for row in reply.json["settings"]}
    assert "s3cret" not in reply.body.decode()
    assert "(hidden)" in rows["--http-restricted-api"]["value"]
    assert rows["--http-port"]["source"] == "command line"
    assert rows["--log-info"] == {"name": "--log-info", "value": "true", "source": "default"}


def test_processes_have_names_and_memory(server: ServerProcess) -> None:
    rows = server.diagnostics("processes").json["processes"]
    assert rows[0]["pid"] == server.process.pid
    assert {"server", "broken_0", "other_0"} <= {row["name"] for row in rows}
    assert all(row["resident_bytes"] >= 0 for row in rows)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost"},
        {"Authorization": "Bearer x", "Sec-Fetch-Site": "cross-site"},
        {HEADER: ""},
        {HEADER: "x" * 43},
    ],
)
def test_callers_without_the_key_are_refused(server: ServerProcess, path: str, headers: dict[str, str]) -> None:
    reply = server.request("GET", path, headers=headers)
    assert reply.status == 403
    assert reply.error.endswith(f"This API is restricted, expecting header '{HEADER}'")


def test_the_key_lies_where_only_the_servers_user_and_no_model_reads_it(tmp_path: Path) -> None:
    """It is gone with its server, or with the next one after that was killed."""
    keys = server_directories()[0] / "diagnostics"
    server = ServerProcess([tmp_path])
    server.wait_ready()
    name = f"127.0.0.1:{server.port}"
    (file,) = keys.glob(f"*/*/{name}")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert file.stat().st_uid == os.geteuid()
    assert file.read_text().strip() not in server.output
    server.stop(signal.SIGKILL)
    assert file.exists()
    server = ServerProcess([tmp_path], f"--http-port={name.partition(':')[2]}")
    server.wait_ready()
    assert list(keys.glob(f"*/*/{name}")) != [file]
    assert server.diagnostics("log").status == 200
    server.stop()
    assert list(keys.glob(f"*/*/{name}")) == []


def test_no_key_is_written_where_models_could_read_it(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}  # below /tmp
    server = ServerProcess([tmp_path], env=environment)
    server.wait_ready()
    server.wait_for("no program is given the key to the diagnostics: models may read and write where ")
    assert list(tmp_path.glob(f"cache/**/*:{server.port}")) == []
    server.stop()


def test_a_header_of_the_group_decides_instead(tmp_path: Path) -> None:
    server = ServerProcess([tmp_path], "--http-restricted-api=diagnostics:admin-key=s3cret")
    server.wait_ready()
    elsewhere = {"Host": "example.org", "X-Forwarded-For": "10.0.0.1"}
    for path in PATHS:
        assert server.diagnostics(path.removeprefix("/v2/diagnostics/")).status == 403
        assert server.request("GET", path, headers={"admin-key": "s3cret", **elsewhere}).status != 403
    server.stop()


def test_requests_that_were_traced_are_kept_with_those_that_they_made(server: ServerProcess) -> None:
    server.infer("caller", BODY)
    assert server.diagnostics("traces").json == {"traces": []}
    setting = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"}
    changed = server.request("POST", "/v2/models/caller/trace/setting", setting)
    assert changed.json == {**setting, "trace_mode": "memory"}
    for _ in range(3):
        server.infer("caller", BODY)
    call, root = server.diagnostics("traces").json["traces"]
    assert (root["model_name"], root["parent_id"], root["request_id"], root["error"]) == ("caller", None, "mine", "")
    assert (call["model_name"], call["parent_id"]) == ("broken", root["id"])
    assert "this model is broken" in call["error"]
    moments = {each["name"]: each["ns"] for each in root["timestamps"]}
    assert moments["HTTP_RECV_START"] < moments["QUEUE_START"] < moments["COMPUTE_START"] < moments["HTTP_SEND_END"]


def test_the_configuration_file_of_a_model_is_shown_as_it_is_now(server: ServerProcess) -> None:
    reply = server.diagnostics("configuration?model=other").json
    assert reply["text"] == Path(reply["path"]).read_text()
    file = Path(server.diagnostics("configuration?model=caller").json["path"])
    assert server.diagnostics("configuration?model=..").status == 404
    file.rename(file.with_suffix(".away"))
    assert server.diagnostics("configuration?model=caller").json == {"path": str(file), "text": None}
    os.mkfifo(file)
    assert "a FIFO" in server.diagnostics("configuration?model=caller").json["error"]


def test_the_environment_of_a_model_has_its_packages(server: ServerProcess) -> None:
    found = server.diagnostics("environment?model=other").json
    assert (found["interpreter"], found["archive"], found["archive_bytes"]) == (sys.executable, None, None)
    assert found["packages"]["numpy"] == np.__version__
    assert server.diagnostics("environment?model=unknown").status == 404
