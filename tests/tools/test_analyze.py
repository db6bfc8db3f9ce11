"""``pybackend analyze``: real models, whose best configurations are known."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pybackend.cli.commands import run
from tests.support.repositories import write_model
from tests.support.server import DEADLINE_S, serving
from tests.support.thorough import thorough

pytestmark = pytest.mark.e2e

CONFIG = """\
# Written by hand.
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [4] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [4] } ]
"""

MODEL = """
import fcntl, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        WORK
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())])
            for request in requests
        ]
"""

ONE_AT_A_TIME = """with open(__file__) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.02)"""
"""A resource that all instances share, such as a device: a batch takes as long as one request."""

EACH_ALONE = "time.sleep(0.02 * len(requests))"
BREAKS_IN_BATCHES = "assert len(requests) == 1, 'one row only'\n        time.sleep(0.01)"
QUICK = ("--window=0.3", "--clients=1,4")


def repository(path: Path, name: str, work: str) -> Path:
    write_model(path, name, MODEL.replace("WORK", work), CONFIG)
    return path / name / "config.pbtxt"


def command(path: Path, *flags: str) -> list[str]:
    own = [str(path), f"--output={path}-out", *QUICK, *flags]
    return [sys.executable, "-m", "pybackend", "analyze", *own]


def analyze(path: Path, *flags: str) -> tuple[str, dict[str, Any]]:
    """What the command shows, and its results."""
    ended = subprocess.run(command(path, *flags), capture_output=True, text=True, timeout=DEADLINE_S * 3, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, json.loads(Path(f"{path}-out/results.json").read_text())


def test_batches_are_found_for_a_model_that_profits_from_them(tmp_path):
    config = repository(tmp_path / "models", "device", ONE_AT_A_TIME)
    shown, found = analyze(
        tmp_path / "models", "device", "--trials=2", "--instances=1", "--batch-sizes=4", "--delays=0", "--write"
    )
    assert "The best configuration is 1 instance, batches of up to 4: " in shown
    assert "\n+dynamic_batching {" in shown
    assert f"written: {config}" in shown
    assert config.read_text().startswith(CONFIG)
    assert "dynamic_batching" in config.read_text()
    assert len(found["compared"]) == 4
    best = found["outcomes"][1]["rungs"][-1]
    assert set(best["inside"]["device"]["batches"]) & {"2", "3", "4"}
    assert best["inside"]["device"]["closed"]
    assert best["memory_bytes"] > 0
    page = Path(f"{tmp_path}/models-out/report.html").read_text()
    assert page.count("<svg") == 4
    assert re.search(
        r"Why the batches of device did not grow: .*an instance was free and took what waited \(\d+ batches\)", page
    )


@pytest.mark.thorough
def test_instances_are_found_for_a_model_that_profits_from_them(tmp_path):
    config = repository(tmp_path / "models", "alone", EACH_ALONE)
    shown, _ = analyze(tmp_path / "models", "alone", "--trials=4", "--instances=1,3", "--batch-sizes=4", "--delays=0")
    assert "The best configuration is 3 instances" in shown
    assert config.read_text() == CONFIG


def test_front_ends_are_varied_and_named_as_a_flag_of_the_server(tmp_path):
    config = repository(tmp_path / "models", "device", ONE_AT_A_TIME)
    flags = ("--trials=2", "--instances=1", "--batch-sizes=4", "--delays=0", "--front-ends=1", "--write")
    limit = "--min-throughput=55"  # the present configuration has 50 at most
    shown, found = analyze(tmp_path / "models", "device", *flags, limit)
    present, *tried = found["outcomes"]
    assert (present["choice"], present["front_ends"], present["failed"]) == ({}, 0, "")
    assert [(each["front_ends"], each["choice"]["device"]["delay_us"], each["failed"]) for each in tried] == [
        (1, None, ""),
        (1, 0, ""),
    ]
    assert tried[0]["rungs"][0]["memory_bytes"] > present["rungs"][0]["memory_bytes"]
    assert "The best configuration is 1 instance, batches of up to 4; --front-ends=1: " in shown
    assert "\nnot written, since it belongs to the server: pybackend serve --front-ends=1\n" in shown
    assert "front" not in config.read_text()
    assert "dynamic_batching" in config.read_text()
    page = Path(f"{tmp_path}/models-out/report.html").read_text()
    assert "The flag of the server: <code>pybackend serve --front-ends=1</code>" in page
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and str(tmp_path).encode() in _command_of(pid)]


CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = requests[0].inputs()
        for _ in range(100):
            answer = pb_utils.InferenceRequest(model_name="step", inputs=inputs, requested_output_names=["OUT"]).exec()
            assert not answer.has_error(), answer.error()
        return [pb_utils.InferenceResponse(answer.output_tensors()) for _ in requests]
"""


@pytest.mark.thorough
def test_models_that_could_share_a_process_are_named(tmp_path):
    repository(tmp_path / "models", "step", "pass")
    write_model(tmp_path / "models", "pipeline", CALLS, CONFIG)
    flags = ("--trials=1", "--instances=1", "--batch-sizes=4", "--delays=0", "--window=1", "--", "--load-model=step")
    shown, _ = analyze(tmp_path / "models", "pipeline", *flags)
    (advice,) = (line for line in shown.splitlines() if "With the same PROCESS_GROUP" in line)
    assert advice.startswith("model 'pipeline' calls 'step' ")
    page = Path(f"{tmp_path}/models-out/report.html").read_text()
    assert "With the same PROCESS_GROUP" in page


@pytest.mark.thorough
def test_steps_of_an_ensemble_are_varied_and_an_open_loop_has_one_rate(tmp_path):
    repository(tmp_path / "models", "step", EACH_ALONE)
    ensemble = CONFIG.replace('"python"', '""') + (
        'platform: "ensemble" ensemble_scheduling { step [ { model_name: "step" model_version: -1 '
        'input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }'
    )
    (tmp_path / "models/pipeline/1").mkdir(parents=True)
    (tmp_path / "models/pipeline/config.pbtxt").write_text(ensemble)
    flags = ("--trials=1", "--instances=2", "--batch-sizes=4", "--rate=20", "--objective=latency")
    _, found = analyze(tmp_path / "models", "pipeline", *flags)
    assert list(found["present"]) == ["step"]
    assert [rung["clients"] for rung in found["outcomes"][0]["rungs"]] == [4]
    assert list(found["outcomes"][0]["rungs"][0]["answers"]) == ["pipeline"]


@pytest.mark.thorough
def test_a_configuration_with_which_the_model_fails_is_one_that_failed(tmp_path):
    repository(tmp_path / "models", "rows", BREAKS_IN_BATCHES)
    data = tmp_path / "values.json"
    data.write_text(
        '{"data": [{"IN": [1, 2, 3, 4]}, {"IN": {"content": [5, 6, 7, 8], "shape": [4]}}, {"IN": {"b64": "AACAPwAAAEAAAEBAAACAQA=="}}]}'
    )
    flags = ("--trials=2", "--instances=1", "--batch-sizes=4", "--delays=5ms", f"--data={data}")
    shown, found = analyze(tmp_path / "models", "rows", *flags)
    assert "requests with an error" in found["outcomes"][1]["failed"]
    assert "one row only" in found["outcomes"][1]["failed"]
    assert "No configuration is better than the present one." in shown


def test_requests_recorded_from_a_running_server_are_sent_again(tmp_path):
    seen = "pb_utils.get_input_tensor_by_name(requests[0], 'IN').as_numpy().ravel()[0]"
    config = repository(tmp_path / "models", "device", f"time.sleep(0.02)\n        assert {seen} == 7")
    trace = tmp_path / "trace.json"
    with serving(tmp_path / "models", flags=(f"--trace-config=triton,file={trace}",)) as server:
        wanted = {"trace_level": ["TENSORS"], "trace_rate": "1", "trace_count": "2"}
        assert server.request("POST", "/v2/trace/setting", json.dumps(wanted).encode()).status == 200
        tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": [7, 2, 3, 4]}
        for _ in range(3):
            assert (
                server.request("POST", "/v2/models/device/infer", json.dumps({"inputs": [tensor]}).encode()).status
                == 200
            )
    assert trace.stat().st_mode & 0o777 == 0o600
    flags = ("--trials=1", "--instances=1", "--batch-sizes=2", "--delays=0", "--clients=1", f"--data={trace}")
    _, found = analyze(tmp_path / "models", "device", *flags)
    assert found["outcomes"][0]["failed"] == ""
    assert config.read_text() == CONFIG


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("len(requests) > 1 and __import__('os')._exit(3)", "is not healthy"),
        ("while len(requests) > 1: pass", "had no answer for 30 s"),
    ],
    ids=["dies", "hangs"],
)
def test_a_model_that_dies_or_hangs_in_the_middle_is_a_configuration_that_failed(work, reason, tmp_path):
    config = repository(tmp_path / "models", "rows", f"{work}\n        time.sleep(0.01)")
    flags = ("--trials=2", "--instances=1", "--batch-sizes=2", "--delays=5ms", "--", "--exit-timeout-secs=1")
    shown, found = analyze(tmp_path / "models", "rows", *flags)
    assert reason in found["outcomes"][1]["failed"]
    assert "No configuration is better than the present one." in shown
    assert config.read_text() == CONFIG
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and str(tmp_path).encode() in _command_of(pid)]


def test_wrong_arguments_are_refused_with_the_way_out(tmp_path, capsys):
    repository(tmp_path / "models", "device", ONE_AT_A_TIME)
    models, out = f"{tmp_path}/models", f"--output={tmp_path}/out"
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.json").write_text("{}")
    for arguments, said in (
        ([models, out, "devise"], "has no model 'devise'; it has device"),
        ([models, out, "device"], "--resume goes on with it"),
        ([models, out, "device", "--resume"], "holds no results of `pybackend analyze`"),
        ([models, out, "device", "--p99=fast"], "'fast' is no value such as 20ms"),
        ([models, out, "device", "--instances=4..x"], "is no list such as 1,2,4"),
        ([models, out, "device", "--rate=nan"], "'nan' is no number such as 0.5"),
        ([models, out, "device", "--clients=8..1"], "is no list such as 1,2,4"),
        ([models, out, "device", "--front-ends=1,65"], "--front-ends must be at most 64"),
        ([models, out, "device", "--front-ends=1", "--objective=cost"], "cannot vary with --objective=cost"),
        ([models, out, "device", "--delays=0us,5m"], "'5m' is no value such as 0 or 500us"),
        ([models, out, "device", f"--compare={tmp_path}/none.json"], "cannot read"),
    ):
        assert run(["analyze", *arguments]) == 1
        assert said in capsys.readouterr().err
    wrong = command(tmp_path / "models", "device", f"--data={tmp_path}/none.json")
    ended = subprocess.run(wrong, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"error: cannot read {tmp_path}/none.json: No such file or directory\n",
    )


# On a server of its own, the measurement that runs is the last one: it may end, and count, or not.
INTERRUPTED = [
    (["--trials=1", "--batch-sizes=4"], "trial 1 of 1"),
    *thorough((["--trials=2", "--batch-sizes=4,8", "--front-ends=1"], "trial [12] of 2")),
]


@pytest.mark.parametrize(("flags", "goes_on"), INTERRUPTED, ids=["", "front ends"])
def test_ctrl_c_leaves_a_report_and_no_process_and_the_same_command_goes_on(flags, goes_on, tmp_path):
    config = repository(tmp_path / "models", "device", ONE_AT_A_TIME)
    started = command(tmp_path / "models", "--instances=2", "--delays=0", "device", *flags)
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("trial 1"):
            break
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "report: " in shown
    assert "--resume goes on" in errors
    assert config.read_text() == CONFIG
    assert not re.search("Traceback", errors)
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and str(tmp_path).encode() in _command_of(pid)]
    resumed = subprocess.run([*started, "--resume"], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert re.match(goes_on, resumed.stdout)
    assert "report: " in resumed.stdout


def _command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
