"""``pybackend optimize``: forms of real models are compared and measured, and failures stay where they are."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybackend.cli.commands import run
from tests.support.gates import wait_until
from tests.support.server import serving
from tests.support.thorough import thorough

sklearn = pytest.importorskip("sklearn")
pytest.importorskip("treelite")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEADLINE_S = 200
"""scikit-learn takes seconds to import, and more where the machine is busy."""

ROWS = np.random.default_rng(5).random((60, 4))


def forest(labels: Any = None) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    classes = (ROWS[:, 0] > 0.5).astype(int) if labels is None else labels
    return RandomForestClassifier(100, max_depth=3, random_state=0).fit(ROWS, classes)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A forest of scikit-learn: treelite needs a hundredth of its time for one row."""
    path = tmp_path_factory.mktemp("forest") / "churn.pkl"
    path.write_bytes(pickle.dumps(forest()))
    return path


def command(path: Path, directory: Path, *flags: str) -> list[str]:
    own = [f"--repository={directory}/models", f"--output={directory}/out", "--trust-pickle", "--window=0.1"]
    return [sys.executable, "-m", "pybackend", "optimize", str(path), *own, *flags]


def optimize(path: Path, directory: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """How the command ended, and its results."""
    asked = command(path, directory, *flags)
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return ended, json.loads((directory / "out/results.json").read_text())


def test_the_better_form_of_a_forest_is_found_and_becomes_the_entry(file, tmp_path):
    np.savez(tmp_path / "rows.npz", input=ROWS[:5])
    flags = ("--forms=treelite", f"--data={tmp_path}/rows.npz", "--min-throughput=300")
    ended, found = optimize(file, tmp_path, *flags)
    assert ended.returncode == 0, ended.stderr
    assert [(each["form"]["name"], each["reason"]) for each in found["outcomes"]] == [
        ("scikit-learn", "misses the limits"),
        ("treelite", ""),
    ]
    usual, better = found["outcomes"]
    assert (found["chosen"], found["requests"], found["entry"]) == ("treelite", 5, f"{tmp_path}/models/churn")
    assert usual["difference"] == {"largest": 0.0, "mean": 0.0, "output": "label"}
    assert better["difference"]["largest"] < 1e-6
    assert "TensorRT, and ONNX Runtime and PyTorch on CUDA: needs a GPU" in ended.stdout
    assert "input__0 FP32 [4] -> output__0 FP32 [2]" in ended.stdout
    page = (tmp_path / "out/report.html").read_text()
    assert "The best form is treelite" in page
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["churn"]
    assert 'backend: "fil"' in (tmp_path / "models/churn/config.pbtxt").read_text()


@pytest.mark.thorough
def test_forms_that_keep_the_limits_are_compared_in_turns_and_the_entry_is_served(file, tmp_path):
    ended, found = optimize(file, tmp_path, "--forms=treelite")
    assert ended.returncode == 0, ended.stderr
    assert [each["reason"] for each in found["outcomes"]] == ["", ""]
    assert (found["chosen"], len(found["compared"])) == ("treelite", 4)
    with serving(tmp_path / "models") as server:
        sample = (tmp_path / "models/churn/sample_request.json").read_bytes()
        assert server.request("POST", "/v2/models/churn/infer", sample).status == 200


class Disguised:
    """A pickle that is a forest, and does something else where treelite reads it."""

    def __init__(self, there: str) -> None:
        self._there = there

    def __reduce__(self) -> Any:
        usual = f"__import__('pickle').loads({pickle.dumps(forest())!r})"
        return eval, (f"{self._there} if 'treelite' in __import__('sys').modules else {usual}",)


OTHER = f"__import__('pickle').loads({pickle.dumps(forest((ROWS[:, 1] > 0.5).astype(int)))!r})"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ("__import__('os').abort()", "signal 6 (SIGABRT)"),
        ("__import__('time').sleep(1000)", "it took longer than 30 s (--timeout)"),
        (OTHER, "output 'probabilities' differs by up to"),
    ],
    ids=["crashes", "hangs", "differs"],
)
def test_a_form_that_fails_is_named_with_the_reason(there, reason, tmp_path):
    path = tmp_path / "churn.pkl"
    path.write_bytes(pickle.dumps(Disguised(there)))
    ended, found = optimize(path, tmp_path, "--forms=treelite", "--timeout=30")
    assert ended.returncode == 0, ended.stderr
    assert reason in found["outcomes"][1]["reason"]
    assert found["chosen"] == "scikit-learn"
    assert reason in (tmp_path / "out/report.html").read_text().replace("&#x27;", "'")
    assert (tmp_path / "models/churn/config.pbtxt").exists()
    assert not processes_of(tmp_path)


@pytest.mark.thorough
def test_a_form_that_fails_in_the_comparison_is_left_out(tmp_path):
    """The metric, which is called when a form has answered, leaves a mark for later loads."""
    path, mark = tmp_path / "churn.pkl", tmp_path / "mark"
    usual = f"__import__('pickle').loads({pickle.dumps(forest())!r})"
    is_later = f"__import__('os').path.exists({str(mark)!r})"
    path.write_bytes(pickle.dumps(Disguised(f"(__import__('os').abort() if {is_later} else {usual})")))
    (tmp_path / "score.py").write_text(
        f"import pathlib\ndef metric(inputs, outputs):\n    if 'output__0' in outputs[0]:\n        pathlib.Path({str(mark)!r}).touch()\n    return 1\n"
    )
    ended, found = optimize(path, tmp_path, "--forms=treelite", f"--metric={tmp_path}/score.py")
    assert ended.returncode == 0, ended.stderr
    assert found["outcomes"][1]["reason"].startswith("it failed when it was compared with the original: ")
    assert found["chosen"] == "scikit-learn"
    assert (tmp_path / "models/churn/config.pbtxt").exists()


@pytest.mark.thorough
def test_a_metric_can_refuse_a_form(file, tmp_path):
    (tmp_path / "score.py").write_text("def metric(inputs, outputs):\n    return -float(len(outputs[0]))\n")
    ended, found = optimize(
        file, tmp_path, "--forms=treelite", f"--metric={tmp_path}/score.py", "--no-entry", "--max-memory=1KB"
    )
    assert [(each["metric"], each["reason"]) for each in found["outcomes"]] == [
        (-2.0, "misses the limits"),
        (-1.0, "misses the limits"),
    ]
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: no form can be served with these tolerances and limits: the report has the reasons. No entry was written\n",
    )
    assert not (tmp_path / "models").exists()


@pytest.fixture
def network(tmp_path) -> Path:
    """An ONNX file, whose runtime starts quickly."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [make.make_node("Add", ["x", "x"], ["y"])]
    ends = [[make.make_tensor_value_info(name, floats, ["rows", 4])] for name in ("x", "y")]
    path = tmp_path / "twice.onnx"
    onnx.save(
        make.make_model(make.make_graph(nodes, "g", *ends), opset_imports=[make.make_opsetid("", 17)], ir_version=8),
        path,
    )
    return path


FORMS = {"network": ["onnxruntime", "onnxruntime-no"], "file": ["scikit-learn", "treelite"]}


@pytest.mark.parametrize(
    ("line", "model", "done"),
    [("2 of 2", "network", 1), *thorough(("1 of 2", "network", 0), ("comparing the best", "file", 2))],
)
def test_ctrl_c_leaves_no_process_and_no_entry_and_a_report_of_the_forms_so_far(line, model, done, tmp_path, request):
    started = command(request.getfixturevalue(model), tmp_path, f"--forms={FORMS[model][1]}")
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
    assert process.stdout is not None
    for shown in process.stdout:
        if shown.startswith(line):
            break
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "models").exists()
    assert not processes_of(tmp_path)
    if done:
        found = json.loads((tmp_path / "out/results.json").read_text())
        assert [each["form"]["name"] for each in found["outcomes"]][:done] == FORMS[model][:done]
        assert found["entry"] == ""
        assert f"report: {tmp_path}/out/report.html" in shown


def test_ctrl_c_while_the_server_is_imported_leaves_no_entry(network, tmp_path):
    process = subprocess.Popen(command(network, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(lambda: "/uvloop/" in maps.read_text(), "the server is imported", DEADLINE_S)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert not (tmp_path / "models").exists()


@pytest.mark.thorough
def test_ctrl_c_ends_a_search_whose_metric_never_returns(network, tmp_path):
    (tmp_path / "score.py").write_text(
        f"import pathlib, time\ndef metric(inputs, outputs):\n    pathlib.Path({str(tmp_path)!r}, 'begun').touch()\n    time.sleep(1000)\n"
    )
    asked = command(network, tmp_path, f"--metric={tmp_path}/score.py")
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "begun").exists, "the metric is called", DEADLINE_S)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert not (tmp_path / "models").exists()
    assert not processes_of(tmp_path)


def processes_of(directory: Path) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_wrong_arguments_are_refused_with_the_way_out(tmp_path, capsys):
    file = tmp_path / "churn.pkl"
    file.write_bytes(pickle.dumps({}))
    (tmp_path / "text.tl").write_text("nothing")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.json").write_text("{}")
    (tmp_path / "model.xml").write_text('<?xml version="1.0"?>\n<net name="n" version="11"></net>')
    (tmp_path / "model.bin").write_text("")
    (tmp_path / "taken" / "churn" / "1").mkdir(parents=True)
    trusted = [str(file), "--trust-pickle", f"--repository={tmp_path}/models"]
    for arguments, said in (
        ([f"{tmp_path}/none.onnx"], "none.onnx does not exist"),
        ([f"{tmp_path}/text.tl"], "is a file of an unknown kind"),
        ([f"{tmp_path}/model.xml"], "is an OpenVINO model, of which no other form is known"),
        ([str(file)], "if you trust the model, add --trust-pickle"),
        ([*trusted, "--forms=treelit"], "there is no form 'treelit'; there are scikit-learn, treelite, onnxruntime"),
        ([*trusted, f"--output={tmp_path}/out"], "has the results of another search: --force replaces them"),
        ([*trusted, "--output=/proc/self"], "cannot write into /proc/self: "),
        (
            [str(file), "--trust-pickle", f"--repository={tmp_path}/taken"],
            "churn exists already: --force replaces it, --name=NAME",
        ),
        (
            [str(file), "--trust-pickle", f"--repository={tmp_path}/taken", "--no-entry", "--output=/proc/self"],
            "cannot write into /proc/self: ",
        ),
        ([*trusted, "--tolerance=small"], "'small' is no pair of numbers such as 1e-3,1e-4"),
        ([*trusted, "--tolerance=nan"], "'nan' is no pair of numbers"),
        ([*trusted, "--window=0"], "--window and --timeout must be above 0"),
        ([*trusted, f"--metric={tmp_path}/none.py"], "none.py does not exist: name a file with a function metric"),
        ([*trusted, "--clients=0"], "--clients"),
    ):
        assert run(["optimize", *arguments]) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text.bin", "error: {}/text.bin is neither JSON nor an .npz file: "),
        *thorough(("none.npz", "error: cannot read {}/none.npz: No such file or directory\n")),
    ],
    ids=["neither", "missing"],
)
def test_data_that_cannot_be_read_is_refused_with_the_reason(name, said, network, tmp_path):
    (tmp_path / "text.bin").write_text("")
    asked = command(network, tmp_path, f"--data={tmp_path}/{name}")
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(said.format(tmp_path))
    assert not (tmp_path / "models").exists()
