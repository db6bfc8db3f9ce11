"""``python -m pybackend_testing``: what it prints, and what it says about mistakes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import pybackend_sdk
import pybackend_wire
from pybackend_testing.command_line import main
from tests.unit.testing.conftest import DECOUPLED, configuration

PASS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pb_utils.Logger.log_info("parameters " + request.parameters() + request.request_id())
            tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
            responses.append(pb_utils.InferenceResponse([tensor], parameters={"n": 1}))
        return responses
"""


@pytest.fixture
def run(write, capsys):
    """``run(*arguments, code=..., config=...)`` gives the exit status, stdout and stderr."""

    def run(*arguments, code=PASS, config=None):
        directory = write(code)
        path = directory.parent / "given.json"
        path.write_text(json.dumps(configuration() if config is None else config))
        status = main([str(directory), "--config", str(path), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_outputs_log_and_time(run, tmp_path):
    np.save(tmp_path / "in.npy", np.array([1.5, 2], np.float32))
    status, out, err = run(
        "--input", f"IN={tmp_path / 'in.npy'}", "--output", f"OUT={tmp_path / 'out.npy'}", "--parameter", "k=1",
        "--parameter", "text=a b", "--request-id", "r7",
    )  # fmt: skip
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"model m, version 1, instance m_0: loaded in [0-9.]+ (ms|s)", lines[0])
    assert lines[1:3] == ["OUT: float32 [2] [1.5, 2. ]", 'parameters: {"n": 1}']
    assert re.fullmatch(r"took [0-9.]+ (ms|s)", lines[3])
    assert lines[4:] == [
        f"OUT is saved in {tmp_path / 'out.npy'}",
        'log: INFO model.py:8] parameters {"k": 1, "text": "a b"}r7',
    ]
    assert np.load(tmp_path / "out.npy").tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("datatype", "value", "shown"),
    [
        ("FP32", "IN=[1, 2]", "float32 [2] [1., 2.]"),
        ("INT64", "IN=7", "int64 [1] [7]"),
        ("BOOL", "IN=true", "bool [1] [ True]"),
        ("STRING", 'IN="a=b"', "BYTES [1] [b'a=b']"),
        ("STRING", "IN=text:some words", "BYTES [1] [b'some words']"),
        ("STRING", "IN=text:", "BYTES [1] [b'']"),
        ("STRING", 'IN=["a", "b"]', "BYTES [2] [b'a', b'b']"),
        ("INT32", "IN=" + json.dumps(list(range(100))), "int32 [100] [ 0, 1, 2, ..., 97, 98, 99]"),
    ],
)
def test_values_of_inputs(run, datatype, value, shown):
    status, out, _ = run("--input", value, config=configuration(datatype + " -1", datatype + " -1"))
    assert status == 0
    assert f"OUT: {shown}\n" in out


@pytest.mark.parametrize("form", ["bytes:", "@"])
def test_a_file_as_a_string(run, tmp_path, form):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    status, out, _ = run(
        "--input", f"IN={form}{tmp_path / 'photo.jpg'}", "--output", f"OUT={tmp_path / 'o.npy'}",
        config=configuration("STRING 1", "STRING 1"),
    )  # fmt: skip
    assert status == 0
    assert r"OUT: BYTES [1] [b'\xff\xd8']" in out
    assert np.load(tmp_path / "o.npy").tolist() == [b"\xff\xd8"]


def test_values_from_files(run, tmp_path):
    np.save(tmp_path / "in.npy", np.array([1.5], np.float32))
    (tmp_path / "in.json").write_text("[2.5]")
    for file, shown in (("in.npy", "[1.5]"), ("in.json", "[2.5]")):
        _, out, _ = run("--input", f"IN=@{tmp_path / file}")
        assert f"OUT: float32 [1] {shown}\n" in out


def test_many_requests(run):
    status, out, _ = run("--input", "IN=1", "--requests", "3")
    assert status == 0
    assert re.search(r"^3 requests: median .* ms, fastest .* ms, slowest .* ms$", out, re.MULTILINE)
    assert out.count("log: ") == 3
    assert out.count("OUT: ") == 1


def test_a_decoupled_model(run):
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(request.inputs()[0].as_numpy()[0])):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))]))
                sender.send(flags=1)
    """
    status, out, _ = run("--input", "IN=2", code=code, config=configuration(**DECOUPLED))
    assert status == 0
    assert "response 1 of 2:\nOUT: float32 [1] [0.]\nresponse 2 of 2:\nOUT: float32 [1] [1.]\n" in out
    status, out, _ = run("--input", "IN=0", code=code, config=configuration(**DECOUPLED))
    assert (status, "no responses\n" in out) == (0, True)


def test_other_models_and_parameters_of_the_configuration(run, write):
    describes = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        return config
"""
    other = write(PASS + describes, "other")
    code = """
    import json
    class TritonPythonModel:
        def initialize(self, args):
            self.name = json.loads(args["model_config"])["parameters"]["other"]["string_value"]

        def execute(self, requests):
            tensor = pb_utils.Tensor("IN", requests[0].inputs()[0].as_numpy() * 3)
            request = pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=["OUT"], model_name=self.name)
            return [pb_utils.InferenceResponse(request.exec().output_tensors())]
    """
    status, out, err = run("--input", "IN=2", "--model", f"x={other}", "--config-parameter", "other=x", code=code)
    assert (status, err) == (0, "")
    assert "OUT: float32 [1] [6.]" in out


# --- Failures ---


def test_a_model_that_fails(run):
    code = PASS.replace("responses = []", "raise ValueError('xyz')")
    status, out, err = run("--input", "IN=1", code=code)
    assert (status, err) == (1, "")
    assert "error INTERNAL: Failed to process the request(s) for model 'm_0', message: ValueError: xyz" in out
    assert re.search(r"model\.py\(6\): execute", out)


def test_a_model_that_does_not_load(run):
    status, _, err = run(code="import nothing_of_that_name")
    assert status == 1
    assert err.startswith("error: ModuleNotFoundError: No module named 'nothing_of_that_name'\n\nAt:\n")


def test_an_output_that_is_not_as_configured(run):
    code = PASS.replace("as_numpy()", "as_numpy().astype(np.float64)")
    status, _, err = run("--input", "IN=1", code=code)
    assert status == 1
    assert err.startswith("error: model 'm' returned output 'OUT' as FP64, but its configuration says FP32")
    with pytest.warns(UserWarning, match="returned output 'OUT' as FP64"):
        status, out, _ = run("--input", "IN=1", "--no-strict", code=code)
    assert (status, "OUT: float64 [1] [1.]" in out) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--input", "N=1"),
        ("--input", "IN"),
        ("--input", "=1"),
        ("--input", "IN=1", "--input", "IN=2"),
        ("--input", "IN=no.npy"),
        ("--input", "IN=words"),
        ("--input", "IN={}"),
        ("--input", "IN=bytes:no"),
        ("--input", "IN=@no.jpg"),
        ("--input", "IN=@no.npy"),
        ("--input", "IN=[1, [2]]"),
        ("--input", "IN=1", "--output", "X=f.npy"),
        ("--input", "IN=1", "--output", "OUT=/no/dir/f.npy"),
        ("--config", "no.json"),
        ("--version", "9"),
    ],
    ids=str,
)
def test_mistakes_are_explained(run, arguments, snapshot):
    status, _, err = run(*arguments)
    assert status == 2
    assert err.startswith("error: ")
    assert err.rstrip("\n") == snapshot
    assert "Traceback" not in err


def test_files_that_are_no_arrays(run, tmp_path):
    path = tmp_path / "in.npy"
    for content, text in ((b"text", "it cannot be read as an array"), (b"", "it cannot be read as an array")):
        path.write_bytes(content)
        status, _, err = run("--input", f"IN={path}")
        assert (status, text in err) == (2, True), err
    np.save(path, np.array(["a"], object), allow_pickle=True)
    status, _, err = run("--input", f"IN={path}")
    assert (status, "Strings must be saved as an array of dtype S or U" in err) == (2, True), err


def test_a_file_that_was_meant_as_bytes(run, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff")
    _, _, err = run("--input", f"IN={tmp_path / 'photo.jpg'}")
    assert f"There is a file of that name: write @{tmp_path / 'photo.jpg'} for its contents" in err


@pytest.mark.parametrize("arguments", [["--requests", "0"], ["--requests", "x"], ["--nothing"]])
def test_wrong_options_exit_with_two(run, arguments):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2


def test_as_a_command(write):
    directory = write(PASS)
    (directory / "c.json").write_text(json.dumps(configuration()))
    folders = [os.path.dirname(os.path.dirname(package.__file__)) for package in (pybackend_sdk, pybackend_wire)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}

    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "pybackend_testing", *arguments],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = command(str(directory), "--config", str(directory / "c.json"), "--input", "IN=[1]")
    assert (done.returncode, done.stderr) == (0, "")
    assert "OUT: float32 [1] [1.]" in done.stdout
    shown = command("--help").stdout
    for word in ("NAME=@file.npy", "--requests", "exit status", "example:"):
        assert word in shown
