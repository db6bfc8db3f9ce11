"""``pybackend infer``: one request from the command line, to a running server or to one for its own use."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from pybackend.cli import main
from pybackend_client.connection import Connection, LargeAnswerError
from pybackend_client.trial import Trial
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

DECOUPLED = "model_transaction_policy { decoupled: true }"
ROOT = Path(__file__).resolve().parents[2]
ADD_SUB = ROOT / "examples" / "add_sub" / "model_repository"
SEQUENCE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str((
                request.request_id(), request.correlation_id(), request.flags(), request.parameters()
            ))], object))])
            for request in requests
        ]
"""
BRAIN_FLOAT = """
class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", each)]) for each in tensors]
"""
WAITS = """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for value in array[array >= 0]:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.float32))]))
            if len(array) > 1:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the end")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PAUSES = """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            pass_gate(self.directory, "execute")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
REFUSES = """
class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("IN must not be empty", pb_utils.TritonError.INVALID_ARG)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""
MISSPELT = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OTU", np.zeros(1))]) for _ in requests]
"""

TITLE, SHOWN = "\x1b]0;another title\x07\x9b2J", r"\u001b]0;another title\u0007\u009b2J"
"""What changes a terminal that it is written to, and what stands in its place."""
ESCAPES = f"""
class TritonPythonModel:
    def execute(self, requests):
        if pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0] > 0:
            raise ValueError({TITLE!r})
        return [pb_utils.InferenceResponse([pb_utils.Tensor({TITLE!r}, np.zeros(1, np.float32))]) for _ in requests]
"""
STREAM_ESCAPES = f"""
class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))]))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError({TITLE!r})))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    for name, datatype, dims, extra in (
        ("flat", "TYPE_FP32", "[ -1 ]", ""),
        ("square", "TYPE_INT32", "[ 2, 2 ]", ""),
        ("batched", "TYPE_INT64", "[ 3 ]", "max_batch_size: 4"),
        ("text", "TYPE_STRING", "[ -1 ]", ""),
        ("truth", "TYPE_BOOL", "[ 1 ]", ""),
        ("unsigned", "TYPE_UINT64", "[ 2 ]", ""),
    ):
        write_model(directory, name, IDENTITY, identity_config(datatype, dims, extra))
    write_model(directory, "half", BRAIN_FLOAT, identity_config("TYPE_BF16", "[ 2 ]"))
    out = 'backend: "python"\ninput [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] optional: true } ]\n'
    out += 'output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    write_model(directory, "fields", SEQUENCE, out)
    write_model(directory, "refuses", REFUSES, out)
    write_model(directory, "misspelt", MISSPELT, out)
    write_model(directory, "stream", STREAM, identity_config(extra=DECOUPLED))
    write_model(
        directory, "escapes", ESCAPES, identity_config().replace('"OUT"', json.dumps(TITLE, ensure_ascii=False))
    )
    write_model(directory, "stream_escapes", STREAM_ESCAPES, identity_config(extra=DECOUPLED))
    write_model(directory, "huge", IDENTITY, identity_config(dims="[ 1000000000000 ]"))
    return directory


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, ADD_SUB) as server:
        yield server


@pytest.fixture
def infer(server, capsys):
    """Runs the command in this process, on a running server: starting an interpreter for each would take longer."""

    def infer(*arguments: str) -> subprocess.CompletedProcess[str]:
        status = main(["infer", "--url", server.url, *arguments])
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, said.out, said.err)

    return infer


def test_outputs_are_printed_with_names_types_shapes_and_values(infer):
    done = infer("add_sub", "--input", "INPUT0=[1, 2, 3, 4]", "--input", "INPUT1=[10, 20, 30, 40]", "--id", "first")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "model add_sub, version 1\n"
        "id: first\n"
        "OUTPUT0  FP32 [4]  [11., 22., 33., 44.]\n"
        "OUTPUT1  FP32 [4]  [ -9., -18., -27., -36.]\n"
    )


def test_one_output_as_json(infer):
    done = infer("add_sub", "--input", "INPUT0=[1,2,3,4]", "--input", "INPUT1=[1,1,1,1]", "--output=OUTPUT1", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        {
            "model_name": "add_sub",
            "model_version": "1",
            "outputs": [{"name": "OUTPUT1", "datatype": "FP32", "shape": [4], "data": [0.0, 1.0, 2.0, 3.0]}],
        },
    )


@pytest.mark.parametrize(
    ("model", "value", "line"),
    [
        ("flat", "7", "OUT  FP32 [1]  [7.]"),
        ("flat", "[]", "OUT  FP32 [0]  []"),
        ("square", "[1, 2, 3, 4]", "OUT  INT32 [2,2]\n  [[1, 2],\n   [3, 4]]"),
        ("batched", "[1, 2, 3]", "OUT  INT64 [1,3]  [[1, 2, 3]]"),
        ("batched", "[1, 2, 3, 4, 5, 6]", "OUT  INT64 [2,3]\n  [[1, 2, 3],\n   [4, 5, 6]]"),
        ("batched", "[[1, 2, 3]]", "OUT  INT64 [1,3]  [[1, 2, 3]]"),
        ("text", "two words", 'OUT  BYTES [1]  ["two words"]'),
        ("text", "12", 'OUT  BYTES [1]  ["12"]'),
        ("text", '["ä", ""]', 'OUT  BYTES [2]  ["ä", ""]'),
        ("text", json.dumps("x" * 100), f'OUT  BYTES [1]  ["{"x" * 59}... (100 bytes)]'),
        ("truth", "true", "OUT  BOOL [1]  [ True]"),
        ("half", "[1.5, -2]", "OUT  BF16 [2]  [ 1.5, -2. ]"),
        ("unsigned", f"[{2**63}, 1]", "OUT  UINT64 [2]  [9223372036854775808,                   1]"),
        ("flat", str(list(range(100))), "OUT  FP32 [100]  [ 0.,  1.,  2., ..., 97., 98., 99.]"),
    ],
)
def test_values_get_the_type_and_shape_of_the_input(infer, model, value, line):
    done = infer(model, "--input", f"IN={value}")
    assert (done.stderr, done.stdout) == ("", f"model {model}, version 1\n{line}\n")


def test_values_from_files_and_standard_input(server, infer, tmp_path):
    np.save(tmp_path / "in.npy", np.array([[1, 2, 3], [4, 5, 6]]))
    (tmp_path / "in.json").write_text("[[7, 8, 9]]")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    np.save(tmp_path / "text.npy", np.array(["ä", "b"]))
    answers = [
        infer("batched", "--input", f"IN=@{tmp_path}/in.npy").stdout,
        infer("batched", "--input", f"IN=@{tmp_path}/in.json").stdout,
        infer("text", "--input", f"IN=@{tmp_path}/photo.jpg").stdout,
        infer("text", "--input", f"IN=bytes:{tmp_path}/photo.jpg").stdout,
        infer("text", 'IN="bytes:photo.jpg"').stdout,
        infer("text", "--input", f"IN=@{tmp_path}/text.npy").stdout,
    ]
    for data in (b"[1, 2, 3]", (tmp_path / "in.npy").read_bytes()):
        command = [sys.executable, "-m", "pybackend", "infer", "--url", server.url, "batched", "--input", "IN=-"]
        answers.append(subprocess.run(command, input=data, capture_output=True, check=True, timeout=60).stdout.decode())
    assert [answer.partition("\n")[2].strip() for answer in answers] == [
        "OUT  INT64 [2,3]\n  [[1, 2, 3],\n   [4, 5, 6]]",
        "OUT  INT64 [1,3]  [[7, 8, 9]]",
        r"OUT  BYTES [1]  [b'\xff\xd8']",
        r"OUT  BYTES [1]  [b'\xff\xd8']",
        'OUT  BYTES [1]  ["bytes:photo.jpg"]',
        'OUT  BYTES [2]  ["ä", "b"]',
        "OUT  INT64 [1,3]  [[1, 2, 3]]",
        "OUT  INT64 [2,3]\n  [[1, 2, 3],\n   [4, 5, 6]]",
    ]


def test_sequences_and_parameters_reach_the_model(infer):
    flags = ["--sequence-id=7", "--sequence-start", "--sequence-end", "--parameter", "a=1.5", "--parameter", "b=word"]
    done = infer("fields", "--id=x", *flags)
    assert done.stderr == ""
    assert """('x', 7, 3, '{"a": 1.5, "b": "word"}')""" in re.sub(r"\\(.)", r"\1", done.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ["add_sub", "--input", "INPUT0=[1,2,3]"],
        ["flat", "--input", "INN=1"],
        ["square", "--input", "IN=[1,2,3,4.5]"],
        ["square", "--input", f"IN=[1,2,3,{2**31}]"],
        ["flat", "--input", 'IN=["a"]'],
        ["text", "--input", "IN=[1]"],
        ["flat", "--input", "IN=@no.npy"],
        ["text", "IN=bytes:no.jpg"],
        ["refuses"],
        ["nobody"],
        ["sqare"],
    ],
    ids=str,
)
def test_an_error_is_one_sentence_and_status_1(infer, arguments, snapshot):
    done = infer(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.rstrip() == snapshot


def test_numbers_need_no_brackets(infer):
    assert infer("flat", "IN=5.1,3.5, 1").stdout.splitlines()[-1] == "OUT  FP32 [3]  [5.1, 3.5, 1. ]"


def test_a_file_of_neither_kind(infer, tmp_path):
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04")
    done = infer("flat", f"IN=@{tmp_path}/x.pkl")
    assert done.stderr == (
        f"error: input 'IN': {tmp_path}/x.pkl is neither JSON (it is no text) nor an array saved with numpy.save()\n"
    )


@pytest.mark.parametrize("shape", ["(1000000000000000,)", "(3, -1)", f"({2**64}, 0)", "(" * 3000])
def test_a_file_that_announces_more_than_it_has(infer, tmp_path, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 8)
    done = infer("flat", f"IN=@{tmp_path}/x.npy")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: input 'IN': {tmp_path}/x.npy cannot be read as an array: ")


@pytest.mark.parametrize("depth", [500, 100_000])
def test_json_that_is_nested_too_deeply(infer, tmp_path, depth):
    (tmp_path / "x.json").write_text("[" * depth + "]" * depth)
    done = infer("flat", f"IN=@{tmp_path}/x.json", "--parameter", "x=" + "[" * 100_000)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: input 'IN'")


def test_wrong_json_is_explained(infer):
    done = infer("flat", "--input", "IN=[1,")
    assert done.returncode == 1
    assert done.stderr.startswith("error: input 'IN' wants FP32 [-1]: [1, is not JSON (")
    assert "@FILE.npy" in done.stderr


def test_the_responses_of_a_decoupled_model_are_printed_as_they_arrive(infer):
    done = infer("stream", "--input", "IN=[2, 7]", "--id", "a")
    assert (done.returncode, done.stderr) == (1, "error: the end\n")
    assert done.stdout == "OUT: 2.0\nOUT: 7.0\n"
    done = infer("stream", "--input", "IN=[-1, -1]")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: the end\n"), "in the first response"
    done = infer("stream", "--input", "IN=[2]", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"OUT": 2.0, "model_name": "stream", "model_version": "1"}
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "--input", "X"],
        ["m", "--input", "X=1", "--input", "X=2"],
        ["m", "--input", "X=-", "--input", "Y=-"],
        ["m", "--sequence-start"],
        ["m", "--", "--sandbox=off"],
        ["m", "--outptu=X"],
        ["m", "n"],
    ],
    ids=str,
)
def test_a_wrong_command_line(pybackend, arguments, snapshot):
    done = pybackend("infer", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == snapshot


def test_without_a_server(pybackend):
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = pybackend("infer", "m", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: no server answers at {url}: Connection refused. Start a server with `pybackend serve DIRECTORY`, name "
        "another one with --url, or serve the model for this one request with --repository DIRECTORY\n"
    )


class _OtherServer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_another_kind_of_server(pybackend):
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        done = pybackend("infer", "m", "--url", f"127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: the program at http://127.0.0.1:{other.server_port} is no server of the v2")


def test_the_port_for_grpc(pybackend, repository):
    flags = ("--load-model=flat", "--model-control-mode=explicit")
    with serving(repository, flags=flags) as server:
        done = pybackend("infer", "flat", "--input", "IN=[1, 2]", "--url", server.grpc_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: this port serves gRPC over HTTP/2: send HTTP/1.1 requests to the HTTP port\n"


def test_a_port_that_speaks_something_else_is_not_printed_as_it_answers(pybackend):
    def answer(listening):
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"\0\1\2 not HTTP\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        url = f"127.0.0.1:{listening.getsockname()[1]}"
        done = pybackend("infer", "flat", "--input", "IN=[1, 2]", "--url", url)
        thread.join()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: the program at http://{url} does not answer in HTTP/1: is that the server's port for HTTP? "
        "By default it is 8000; 8001 is for gRPC. --url names another one\n"
    )


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_a_wrong_url(pybackend, url):
    done = pybackend("infer", "m", "--url", url)
    assert done.stderr == f"error: '{url}' is not the URL of a server: write, for example, http://localhost:8000\n"


# --- With a server for one request ----------------------------------------------------------------------------------


def test_a_model_is_served_for_one_request(pybackend, repository):
    done = pybackend("infer", "--repository", str(repository), "flat", "--input", "IN=[1, 2]", "--", "--log-info")
    assert (done.returncode, done.stdout) == (0, "model flat, version 1\nOUT  FP32 [2]  [1., 2.]\n")
    assert "successfully loaded 'flat'" in done.stderr
    assert "successfully unloaded 'flat'" in done.stderr
    assert "square" not in done.stderr
    assert re.findall(r"Started (\w+)", done.stderr) == ["HTTPService"]  # it needs no other port


def test_an_ensemble_is_served_with_its_parts(pybackend):
    repository = ROOT / "examples" / "ensemble" / "model_repository"
    done = pybackend(
        "infer",
        "--repository",
        str(repository),
        "difference_of_squares",
        "--input",
        "X=[3, 3, 3, 3]",
        "--input",
        "Y=[1, 1, 1, 1]",
    )
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "RESULT  FP32 [4]  [8., 8., 8., 8.]"), done.stderr


def test_inputs_need_no_flag(infer):
    done = infer("add_sub", "INPUT0=[1, 2, 3, 4]", "--id", "a", "INPUT1=[10, 20, 30, 40]", "--output", "OUTPUT0")
    assert done.stdout.splitlines()[-1] == "OUTPUT0  FP32 [4]  [11., 22., 33., 44.]"


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,4\n", "1, 2\n\n3, 4\n", "\ufeffa,b\n1,2\n3,4"])
def test_rows_of_a_csv_file(infer, tmp_path, text):
    (tmp_path / "rows.csv").write_text(text)
    assert "[3, 4]" in infer("square", f"IN=@{tmp_path}/rows.csv").stdout


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n3,x\n", "line 3 of {path} is no row of numbers: could not convert string to float: 'x'"),
        ("1,2\n3\n", "line 2 of {path} has 1 columns, not 2 as the lines above it"),
    ],
)
def test_a_csv_file_that_is_no_table_of_numbers(infer, tmp_path, text, complaint):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    done = infer("square", f"IN=@{path}")
    assert (done.returncode, done.stderr) == (1, f"error: input 'IN': {complaint.format(path=path)}\n")


@pytest.mark.parametrize("name", ["flat", "square", "batched", "text", "truth", "unsigned", "half", "stream"])
def test_random_inputs_fit_every_model(infer, name):
    done = infer(name, "--random")
    assert (done.returncode, done.stderr) == (0, "")
    assert "OUT" in done.stdout


def test_no_random_values_for_an_input_that_wants_more_than_fit_into_memory(infer):
    done = infer("huge", "--random")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: input 'IN' of shape [1000000000000] has more than 16,000,000 elements, the most that get random values: name a "
        "file with its values\n"
    )


def test_a_command_that_tries_a_model_reads_no_answer_that_memory_cannot_hold(server, monkeypatch):
    monkeypatch.setattr("pybackend_client.trial._MOST_ANSWER_BYTES", 2**20)
    trial = Trial(Connection(server.url, 60.0), "flat")
    trial.configuration()
    trial.answer({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [0.5]}]})
    with pytest.raises(LargeAnswerError, match="has more than 1 MB, more than this program reads"):
        trial.answer({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2**19], "data": [0.5] * 2**19}]})


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        (["escapes", "IN=[0]"], "stdout"),
        (["escapes", "IN=[0]", "--json"], "stdout"),
        (["escapes", "IN=[1]"], "stderr"),
        (["stream_escapes", "IN=[1]"], "stderr"),
    ],
    ids=["name", "name in JSON", "error", "error in a stream"],
)
def test_nothing_that_a_model_writes_changes_the_terminal(infer, arguments, stream):
    done = infer(*arguments)
    assert SHOWN in getattr(done, stream)
    assert all(each.isprintable() for each in (done.stdout + done.stderr).replace("\n", ""))


@pytest.mark.parametrize(("name", "spec"), [("square", "INT32 [2,2]"), ("stream", "FP32 [-1]")])
def test_missing_inputs_are_listed_with_type_and_shape(infer, name, spec):
    done = infer(name)
    assert done.returncode == 1
    assert done.stderr.endswith(f" Not given: IN ({spec}). Write NAME=VALUE, or --random for random values\n")


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_response_without_any_output_is_a_failure(infer, as_json):
    done = infer("misspelt", *as_json)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the response has no output; the model's outputs are OUT. The server's log may name one that is misspelt\n",
    )


def test_a_stream_without_any_response_is_a_failure(infer):
    done = infer("stream", "--input", "IN=-1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the model has ended the stream without a response\n"


def test_outputs_of_a_model_served_for_one_request_are_validated(pybackend, repository):
    done = pybackend("infer", "--repository", str(repository), "misspelt")
    sentence = "error: model 'misspelt' returned output 'OTU', which its configuration does not have. Did you mean OUT?"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, sentence)


def test_an_error_of_a_model_served_for_one_request(pybackend, repository):
    done = pybackend("infer", "--repository", str(repository), "refuses")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "error: IN must not be empty"


def test_a_model_that_cannot_be_served(pybackend, repository):
    done = pybackend("infer", "--repository", str(repository), "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"there is no directory 'nobody' in {repository}" in done.stderr


def test_a_model_whose_process_dies_at_its_start(pybackend, tmp_path):
    code = "import os, sys\nprint('no seat is left', file=sys.stderr)\nos._exit(3)"
    write_model(tmp_path, "licensed", code, identity_config())
    done = pybackend("infer", "--repository", str(tmp_path), "licensed", "--input", "IN=1")
    assert (done.returncode, done.stdout) == (1, "")
    reason = (
        "Stub process 'licensed_0' is not healthy. The process exited with status 3. Its last line: no seat is left."
    )
    assert reason in done.stderr.splitlines()[-1]


def test_a_stream_that_breaks_off_is_an_error_after_what_has_arrived(tmp_path):
    model = write_model(tmp_path, "pauses", GATE + PAUSES, identity_config(extra=DECOUPLED))
    with serving(tmp_path) as server:
        command = [sys.executable, "-m", "pybackend", "infer", "--url", server.url, "pauses", "--input", "IN=1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            Gate(model, "execute").wait_reached()
            assert process.stdout is not None
            assert process.stdout.readline() == "OUT: 1.0\n"
            server.process.kill()
            out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, ""), errors
    assert f"http://{server.url} did not complete its response" in errors


def test_a_signal_ends_the_server_of_a_request_after_the_response(tmp_path):
    model = write_model(tmp_path, "waits", GATE + WAITS, identity_config())
    command = [sys.executable, "-m", "pybackend", "infer", "--repository", str(tmp_path), "waits", "--input", "IN=1"]
    log = tmp_path / "log"
    command += ["--", "--log-info=true", f"--log-file={log}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        gate = Gate(model, "execute")
        gate.wait_reached()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "Signal (2) received" in log.read_text(), "the server has not heard the signal")
        gate.open()
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "model waits, version 1\nOUT  FP32 [1]  [1.]\n"), errors
    assert "Traceback" not in errors


WAITS_AT_START = """
class TritonPythonModel:
    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")

    def execute(self, requests):
        return []
"""


@pytest.mark.spec("srv-H05")
def test_a_model_that_is_still_loading(tmp_path, capsys):
    gate = Gate(write_model(tmp_path, "slow", GATE + WAITS_AT_START, identity_config()), "initialize")
    with serving(tmp_path, flags=("--model-control-mode=poll",), ready=False) as server:
        server.wait_until("/v2/health/live", 200)
        gate.wait_reached()
        loading = "it is still loading, for [0-9]+ s"
        for path, status, text in (
            ("slow", 404, f"Request for unknown model: 'slow' has no available versions: {loading}"),
            ("slow/versions/1", 503, f"Request for unknown model: 'slow' version 1 is not at ready state: {loading}"),
        ):
            reply = server.infer(path, "{}")
            assert reply.status == status
            assert re.fullmatch(text, reply.error)
        assert main(["infer", f"--url=http://{server.url}", "slow", "IN=1"]) == 1
        assert re.fullmatch(f"error: Request for unknown .*: {loading}\n", capsys.readouterr().err)
        server.wait_for("'slow' version 1 is still loading after 2 s: initialize runs")
        gate.open()
        server.wait_ready()
