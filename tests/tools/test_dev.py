"""``pybackend dev``: models load again when their author saves a file."""

import http.client
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest

from pybackend.cli import main
from pybackend.errors import ServerError
from pybackend_tools.terminal.dev_command import parse_dev
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import ServerProcess, serving

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [1]))} ]
"""

MODEL = """
from helper import FACTOR

class TritonPythonModel:
    def execute(self, requests):
        print("factor", FACTOR)
        answer = np.array([FACTOR], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""

MISSPELT = """
class TritonPythonModel:
    def execute(self, requests):
        answer = np.zeros(1, np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OTU", answer)]) for _ in requests]
"""


COMPARES = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for _ in range(3):
                label = "pos" if text[0] == "good" else "neg"
                name = str(text[0])
                found = {"good": 1}.get(text[0])
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([label], object))]))
        return answers
"""


def write(repository, name, factor):
    directory = write_model(repository, name, MODEL, CONFIG)
    (directory / "1" / "helper.py").write_text(f"FACTOR = {factor}\n")
    return directory


def told(server, name):
    answer = infer(server, name, {"IN": np.zeros(1, np.float32)})
    return answer["OUT"].item() if answer.status == 200 else answer.status


def tells(server, name, expected):
    """Wait until a model answers with a number, or a status."""
    wait_until(lambda: told(server, name) == expected, lambda: f"not {expected}: {server.output}", deadline_s=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It serves a repository, and the directory of one model."""
    repository, other = tmp_path_factory.mktemp("dev"), tmp_path_factory.mktemp("other")
    write(repository, "kept", 1)
    write(repository, "saved", 1)
    write(repository, "at_first", "1 / 0")
    write_model(repository, "misspelt", MISSPELT, CONFIG)
    write_model(repository, "compares", COMPARES, CONFIG.replace("FP32", "STRING"))
    write_model(
        repository,
        "lenient",
        MISSPELT,
        f'{CONFIG} parameters {{ key: "VALIDATE_OUTPUTS" value {{ string_value: "no" }} }}',
    )
    alone = write(other, "alone", 1)
    server = ServerProcess([repository, alone], command="dev")
    server.repository, server.alone = repository, alone
    try:
        server.wait_for("following changes of")
        yield server
    finally:
        if not server.process.stdout.closed:
            server.stop()


def test_saved_files_load_by_themselves(server):
    saved = server.repository / "saved"
    assert told(server, "saved") == told(server, "kept") == told(server, "alone") == 1
    (saved / "1" / "helper.py").write_text("FACTOR = 2\n")
    tells(server, "saved", 2)
    # As editors do that write another file and rename it, and keep the old one.
    (saved / "1" / "helper.py").rename(saved / "1" / "helper.py~")
    (saved / "1" / ".helper.py.swp").write_text("FACTOR = 3\n")
    (saved / "1" / ".helper.py.swp").rename(saved / "1" / "helper.py")
    tells(server, "saved", 3)
    (server.alone / "1" / "helper.py").write_text("FACTOR = 4\n")
    tells(server, "alone", 4)
    write(server.repository, "added", 5)
    tells(server, "added", 5)
    shutil.rmtree(server.repository / "added")
    tells(server, "added", 404)
    (server.repository / "at_first" / "1" / "helper.py").write_text("FACTOR = 6\n")
    tells(server, "at_first", 6)


def test_bytes_that_are_taken_for_str_are_warned_of_once_for_each_line(server):
    for _ in range(2):
        assert infer(server, "compares", {"IN": np.array([b"good"], object)})["OUT"].tolist() == [b"neg"]
    server.wait_for(r"compares_0 model.py:12: .*\n")
    cure = "The elements of a BYTES tensor are bytes: `.decode()` makes a str of one"
    assert re.findall(r"compares_0 model.py:(.*)", server.output) == [
        f"10: Comparison between bytes and string, which are never equal. {cure}",
        f"11: str() on a bytes instance, which gives \"b'...'\". {cure}",
        f"12: Comparison between bytes and string, which are never equal. {cure}",
    ]


def test_a_replaced_version_that_hangs_ends_after_its_client_has_left(server):
    hangs = MODEL.replace('        print("factor", FACTOR)\n', "        while FACTOR < 0:\n            pass\n")
    directory = write_model(server.repository, "hangs", hangs, CONFIG)
    (directory / "1" / "helper.py").write_text("FACTOR = 3\n")
    tells(server, "hangs", 3)
    (directory / "1" / "helper.py").write_text("FACTOR = -1\n")
    server.wait_until("/v2/models/hangs/ready", 200)
    wait_until(lambda: server.output.count("successfully loaded 'hangs'") == 2, lambda: server.output)
    before = set(server.stub_pids())
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [0]}
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    client.request("POST", "/v2/models/hangs/infer", json.dumps({"inputs": [tensor]}))

    def running():
        return server.metrics()['pybackend_executions_running{model="hangs",version="1"}']

    wait_until(lambda: running() == 1, "it does not hang")
    (directory / "1" / "helper.py").write_text("FACTOR = 4\n")
    wait_until(lambda: server.output.count("successfully loaded 'hangs'") == 3, lambda: server.output)
    assert told(server, "hangs") == 4
    client.close()
    server.wait_for("instance 'hangs_0' was replaced, and executes for nobody: it is ended")
    wait_until(lambda: len(before & set(server.stub_pids())) < len(before), "its process is left")


def test_the_reason_of_a_failed_load_is_said_once(server):
    server.wait_for(r"failed, as said above: at_first\n")
    assert server.output.count("ZeroDivisionError: division by zero\n    Traceback") == 1
    assert "failed to load 'at_first'" not in server.output


def test_an_output_that_is_not_as_configured_is_an_error(server):
    zero = {"IN": np.zeros(1, np.float32)}
    refused = infer(server, "misspelt", zero)
    sentence = "model 'misspelt' returned output 'OTU', which its configuration does not have. Did you mean OUT?"
    assert (refused.status, refused.error) == (500, sentence)
    assert infer(server, "lenient", zero).status == 200


def test_broken_files_leave_the_last_good_version_serving(server):
    kept = server.repository / "kept"
    keeps = "error: model 'kept' keeps serving as before its change: it is loaded again when its files change"
    (kept / "1" / "helper.py").write_text("FACTOR = (\n")
    server.wait_for(keeps)
    found = server.wait_for(
        r"error: kept_0 helper\.py:1: cannot import \S+: line 1 of (\S+) is not valid Python [\d.]+: '\(' was never closed\n"
        r"    Traceback \(most recent call last\):\n(?:    .*\n)+"
    )
    frames = re.findall(r'File "([^"]+)"', found[0])
    assert frames == [str(kept / "1" / "model.py"), str(kept / "1" / "helper.py")]
    assert told(server, "kept") == 1
    (kept / "1" / "helper.py").write_text("FACTOR = 1\n")
    (kept / "config.pbtxt").write_text("inptu []")
    server.wait_for(f'no field named "inptu". Did you mean input\\?.*\n.*{keeps}')
    assert told(server, "kept") == 1
    (kept / "config.pbtxt").write_text(CONFIG)
    (kept / "1" / "helper.py").write_text("FACTOR = 7\n")
    tells(server, "kept", 7)


def test_lines_are_short_and_the_end_is_quick(server):
    (server.repository / "kept" / "1" / "helper.py").write_text("FACTOR = 8\n")
    tells(server, "kept", 8)
    server.wait_for(r"\n\d\d:\d\d:\d\d kept_0: factor 8\n")
    assert server.stop(signal.SIGINT) == 0
    for line in server.output.splitlines():
        assert re.match(r"\d\d:\d\d:\d\d |    ", line), line


def test_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = parse_dev([], tmp_path.absolute)
    assert (settings.repositories, settings.model_directories) == ((tmp_path,), ())
    assert {settings.http.address, settings.grpc.address, settings.http.metrics_address} == {"127.0.0.1"}
    assert (settings.models.exit_timeout_s, settings.exit_on_error) == (2, False)
    # A model directory, by its configuration or its code, from within as well.
    os.makedirs("models/a/2")
    (tmp_path / "models/a/2/model.py").touch()
    (tmp_path / "models/b/1").mkdir(parents=True)
    (tmp_path / "models/b/1/model.onnx").touch()
    assert parse_dev(["models/b"], tmp_path.absolute).model_directories == (tmp_path / "models/b",)
    for directory, argument in ((".", "models/a"), ("models/a", "."), ("models/a/2", "..")):
        monkeypatch.chdir(tmp_path / directory)
        settings = parse_dev([argument, "--http-port=1"], tmp_path.absolute)
        assert (settings.repositories, settings.model_directories) == ((), (tmp_path / "models/a",))
    assert settings.http.port == 1
    for flag in ("--model-control-mode=explicit", "--repository-poll-secs=0"):
        with pytest.raises(ServerError, match="`pybackend dev` follows its repository"):
            parse_dev([flag], tmp_path.absolute)


def test_a_framework_s_file_is_served_at_once(tmp_path):
    joblib, linear = pytest.importorskip("joblib"), pytest.importorskip("sklearn.linear_model")
    joblib.dump(linear.LinearRegression().fit(np.eye(3), [1, 2, 3]), tmp_path / "prices.joblib")
    server = ServerProcess([tmp_path / "prices.joblib"], "--trust-pickle", command="dev")
    try:
        server.wait_for(
            r"serving a copy of .*prices\.joblib, a pickle of joblib, as model 'prices'; `pybackend import` makes"
        )
        server.wait_ready()
        assert infer(server, "prices", {"input": np.eye(3)[:1]}).status == 200
        server.wait_for("following changes of")
        (copy,) = re.findall(r"following changes of (\S+?)\"?$", server.output, re.MULTILINE)
        assert os.path.exists(copy)
        assert "models may write where" not in server.output  # its sandbox keeps other models from it
    finally:
        server.stop()
    assert not os.path.exists(copy)


def test_what_is_no_repository_is_recognised(tmp_path, capsys):
    pickle = b"\x80\x04joblib"
    for path, data in (
        ("iris.pkl", pickle),
        ("saved/model.joblib", pickle),
        ("mine.py", b""),
        ("code/model.py", b""),
        ("code/labels.txt", b""),
        ("junk.onnx", b"junk"),
        ("all/scale/1/model.py", b""),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_bytes(data)
    for path, words in (
        ("iris.pkl", "{} is a pickle of joblib, and no repository of models: `pybackend import {}` makes an entry"),
        ("saved", "{} is a pickle of joblib, and no repository of models: `pybackend import {}` makes an entry"),
        ("mine.py", "{} is the code of a model, and {} no repository of models. A model is a directory"),
        ("all/scale/1/model.py", "{} is the code of version 1 of model 'scale': name its repository, "),
        ("all/scale/1", "{}/model.py is the code of version 1 of model 'scale': name its repository, "),
        ("code", "{}/model.py is the code of a model, and {} no repository of models. A model is a directory"),
    ):
        assert main(["serve", str(tmp_path / path)]) == 1
        assert capsys.readouterr().err.startswith(f"error: {words.replace('{}', str(tmp_path / path))}")
    for others in (["check"], ["infer", "x", "--input=x=1", "--repository"]):
        assert main([*others, str(tmp_path / "iris.pkl")]) == 1
        assert "iris.pkl is a pickle of joblib, and no repository of models: `pybackend imp" in capsys.readouterr().err
    assert main(["dev", str(tmp_path / "iris.pkl")]) == 1
    assert "if you trust the model, add --trust-pickle" in capsys.readouterr().err
    assert main(["dev", str(tmp_path / "junk.onnx")]) == 1
    assert (
        "junk.onnx is a file of an unknown kind; it begins with 6a 75 6e 6b. Accepted are " in capsys.readouterr().err
    )
    assert main(["dev", str(tmp_path / "all/scale/1/model.py")]) == 1
    assert (
        f"or for `pybackend dev` and `check` the model's directory, {tmp_path / 'all/scale'}\n"
        in capsys.readouterr().err
    )
    assert main(["dev", str(tmp_path / "code")]) == 1
    assert "/code/model.py is the code of a model" in capsys.readouterr().err


def test_version(pybackend):
    done = pybackend("dev", "--version")
    assert done.returncode == 0
    assert re.fullmatch(r"pybackend \d+\.\d+\.\d+\S*\n", done.stdout)


WRITES = """
import os

PLACE = os.path.dirname(__file__)

class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(PLACE, "starts.txt"), "a") as starts:
            starts.write("begun\\n")
        self.count = 0

    def execute(self, requests):
        self.count += 1
        with open(os.path.join(PLACE, "calls.txt.new"), "w") as calls:
            calls.write(str(self.count))
        os.replace(os.path.join(PLACE, "calls.txt.new"), os.path.join(PLACE, "calls.txt"))
        np.save(os.path.join(PLACE, "state"), self.count)
        answer = np.array([self.count], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""

TOUCHES_FROM_OUTSIDE = """
import os, subprocess

class TritonPythonModel:
    def initialize(self, args):
        subprocess.run(["/bin/sh", "-c", 'echo x >> "$0"', os.path.join(os.path.dirname(__file__), "log.txt")], check=True)

    def execute(self, requests):
        return []
"""


@pytest.fixture
def follower(tmp_path):
    with serving(tmp_path, command="dev") as server:
        server.wait_for("following changes of")
        yield server


def test_a_model_that_writes_beside_its_code_is_not_loaded_again(follower, tmp_path):
    directory = write_model(tmp_path, "writes", WRITES, CONFIG)
    (directory / "1").chmod(0o777)
    tells(follower, "writes", 1)
    assert [told(follower, "writes") for _ in range(3)] == [2, 3, 4]
    # The server has looked at all files by the time that it has noticed a later change of another model.
    for factor in (1, 2):
        write(tmp_path, "later", factor)
        tells(follower, "later", factor)
    assert told(follower, "writes") == 5
    assert (directory / "1" / "starts.txt").read_text() == "begun\n"
    assert follower.output.count("model 'writes' writes 1/starts.txt beside its code") == 1
    # What its author changes counts as before.
    write_model(tmp_path, "writes", WRITES.replace("self.count = 0", "self.count = 100"), None)
    tells(follower, "writes", 101)


def test_the_traceback_of_a_version_that_still_serves_has_its_own_lines(follower, tmp_path):
    fails = """
import time

class TritonPythonModel:
    def execute(self, requests):
        raise ValueError(time.monotonic())  # as it was loaded
"""
    write_model(tmp_path, "fails", fails, CONFIG)
    tells(follower, "fails", 500)
    write_model(tmp_path, "fails", "\n# One.\n# Two.\n# Three.\n# Four.\n1 / 0\n", None)
    follower.wait_for("model 'fails' keeps serving as before its change")
    assert told(follower, "fails") == 500
    wait_until(lambda: follower.output.count("  # as it was loaded") == 2, lambda: follower.output)


def test_a_model_that_loads_for_ever_is_named(follower, tmp_path):
    directory = write_model(tmp_path, "touched", TOUCHES_FROM_OUTSIDE, CONFIG)
    (directory / "1").chmod(0o777)
    follower.wait_for(r"Model 'touched' was loaded 5 times in \d+ s, because 1/log.txt keeps changing")
