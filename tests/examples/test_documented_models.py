"""The models that the manual shows are written to disk, served and called as shown there."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.backends.onnxruntime import graphs

ROOT = Path(__file__).resolve().parents[2]


COUNT_TENSORS = """
input [ { name: "LIMIT", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "NUMBER", data_type: TYPE_INT32, dims: [ 1 ] } ] # of each response
"""
PHOTO = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            (picture,) = pb_utils.get_input_tensor_by_name(request, "PICTURE").as_numpy()
            width = pb_utils.get_input_tensor_by_name(request, "WIDTH").as_numpy()
            same = np.frombuffer(picture, np.uint8).astype(np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.append(same, width))]))
        return answers
"""
COLLECT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        call = pb_utils.InferenceRequest(
            model_name="count", inputs=requests[0].inputs(), requested_output_names=["NUMBER"]
        )
        tensors = [tensor for response in call.exec(decoupled=True) for tensor in response.output_tensors()]
        numbers = np.concatenate([tensor.as_numpy() for tensor in tensors])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", numbers)])]
"""


def _write_model(repository, name, config, code):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(code)


def _block(page, opening):
    """The code block whose opening line, or first line, contains `opening`."""
    for fence, code in re.findall(r"^```(\w+[^\n]*)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if opening in fence or opening in code.splitlines()[0]:
            return code
    raise AssertionError(f"no code block for {opening}")


def _written_code_is_shown(file, shown):
    """The page leaves lines out, and joins those of a signature."""
    written = set(file.read_text().splitlines())
    body = [line for line in shown.splitlines() if line and "def " not in line]
    assert [line for line in body if line not in written] == []


@pytest.fixture(scope="module")
def documented(demo, tmp_path_factory):
    repository = tmp_path_factory.mktemp("documented")
    start = (ROOT / "docs" / "getting-started.md").read_text()
    command = shlex.split(re.search(r"^\$ (pybackend new scale models)$", start, re.MULTILINE)[1])
    subprocess.run([sys.executable, "-m", *command[:-1], str(repository)], check=True)
    _written_code_is_shown(repository / "scale" / "1" / "model.py", _block(start, "models/scale/1/model.py"))
    calling = (ROOT / "docs" / "authors" / "bls.md").read_text()
    _write_model(
        repository,
        "scale_politely",
        (repository / "scale" / "config.pbtxt").read_text(),
        _block(calling, "models/scale_politely/1/model.py"),
    )
    decoupled = (ROOT / "docs" / "authors" / "decoupled.md").read_text()
    _write_model(
        repository,
        "count",
        COUNT_TENSORS + _block(decoupled, "model_transaction_policy"),
        _block(decoupled, "models/count/1/model.py"),
    )
    _write_model(repository, "collect", COUNT_TENSORS.replace("dims: [ 1 ] } ] #", "dims: [ -1 ] } ] #"), COLLECT)
    described = (ROOT / "docs" / "authors" / "model.md").read_text().partition("\n## Auto-complete\n")[2]
    code = _block(described, "class TritonPythonModel")
    (repository / "described" / "1").mkdir(parents=True)
    (repository / "described" / "1" / "model.py").write_text(
        code + textwrap.indent("\ndef execute(self, requests):\n    return [None for _ in requests]\n", "    ")
    )
    files = _block((ROOT / "docs" / "operators" / "http-api.md").read_text(), "models/photo/config.pbtxt")
    seen = 'output [ { name: "SEEN", data_type: TYPE_INT32, dims: [ -1 ] } ]'
    _write_model(repository, "photo", files + seen, PHOTO)
    frameworks = (ROOT / "docs" / "authors" / "models-without-code.md").read_text()
    _write_model(
        repository,
        "squeeze",
        _block(frameworks, "models/squeeze/config.pbtxt"),
        _block(frameworks, "models/squeeze/1/model.py"),
    )
    rows = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 4])]
    factor = graphs.initial("factor", np.array([2.5], np.float32))
    multiply = helper.make_node("Mul", ["x", "factor"], ["y"])
    graphs.save(repository / "squeeze" / "1" / "model.onnx", [multiply], *rows, initial=[factor])
    ensemble = ROOT / "examples" / "ensemble" / "model_repository"
    for part in ("sum_and_difference", "multiply"):
        (repository / part).symlink_to(ensemble / part)
    (repository / "difference_of_squares").mkdir()
    shown = (ROOT / "docs" / "authors" / "ensembles.md").read_text()
    config = _block(shown, "models/difference_of_squares/config.pbtxt")
    (repository / "difference_of_squares" / "config.pbtxt").write_text(config)
    with demo.Server(repository) as running:
        running.repository = repository
        yield running


def _call(url, page):
    """Send the page's first `curl ... /infer` line; returns the reply."""
    line = re.search(r"\$ (curl [^\n]*/infer(?: \\\n)?[^\n]*)\n", page)[1].replace("\\\n", " ")
    words = shlex.split(line)
    target = words[2].replace("localhost:8000", url, 1)
    with urllib.request.urlopen(f"http://{target}", words[words.index("-d") + 1].encode(), timeout=60) as reply:
        return json.load(reply)


def test_model_of_getting_started_answers_what_the_page_shows(documented):
    page = (ROOT / "docs" / "getting-started.md").read_text()
    shown = json.loads(re.search(r'^ *(\{"model_name":"scale".*)$', page, re.MULTILINE)[1])
    assert _call(documented.url, page) == shown


def test_model_that_calls_another_one_answers_like_that_one(documented):
    page = (ROOT / "docs" / "getting-started.md").read_text()
    reply = _call(documented.url, page.replace("/v2/models/scale/", "/v2/models/scale_politely/"))
    assert reply["outputs"] == _call(documented.url, page)["outputs"]


def test_decoupled_model_counts(documented):
    body = json.dumps({"inputs": [{"name": "LIMIT", "datatype": "INT32", "shape": [1], "data": [4]}]}).encode()
    with urllib.request.urlopen(f"http://{documented.url}/v2/models/collect/infer", body, timeout=60) as reply:
        assert json.load(reply)["outputs"][0]["data"] == [0, 1, 2, 3]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{documented.url}/v2/models/count/infer", body, timeout=60)
    with refused.value as reply:
        assert reply.code == 501


@pytest.mark.skipif(shutil.which("curl") is None, reason="Debian's package curl is not installed")
def test_files_reach_a_model_as_the_page_sends_them(documented, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(bytes(range(256)))
    page = (ROOT / "docs" / "operators" / "http-api.md").read_text().partition("\n## Files\n")[2]
    page = page.partition("\n### One raw file\n")[0]
    lines = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    assert ["-F" in line for line in lines] == [True, False]
    for line in lines:
        command = line.replace("localhost:8000", documented.url).replace("curl ", "curl --silent --show-error ")
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
        )
        assert json.loads(done.stdout)["SEEN"] == [*range(256), 224]


def test_model_that_wraps_a_file_of_another_framework(documented):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}]}
    url = f"http://{documented.url}/v2/models/squeeze/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as reply:
        (output,) = json.load(reply)["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2.5, 5, 7.5, 10]}


def test_ensemble_multiplies(documented):
    readme = (ROOT / "examples" / "ensemble" / "README.md").read_text()
    assert _call(documented.url, readme)["outputs"][0]["data"] == [-15, -5, 5, 15]


@pytest.mark.parametrize("page", ["docs/authors/ensembles.md", "examples/ensemble/README.md"])
def test_drawing_of_the_ensemble_is_what_is_shown(documented, page):
    command = f"$ pybackend graph {'models' if page.startswith('docs') else 'examples/ensemble/model_repository'}"
    shown = _block((ROOT / page).read_text(), command).removeprefix(f"{command}\n")
    place = documented.repository if page.startswith("docs") else ROOT / "examples" / "ensemble" / "model_repository"
    done = subprocess.run(
        [sys.executable, "-m", "pybackend", "graph", str(place)], capture_output=True, text=True, check=True
    )
    assert done.stdout == shown


def test_clients_of_getting_started_run(documented, capsys):
    page = (ROOT / "docs" / "getting-started.md").read_text()
    blocks = re.findall(r"^    ```python\n(.*?)^    ```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for code in blocks:
        code = textwrap.dedent(code).replace("localhost:8000", documented.url)
        code = code.replace("localhost:8001", documented.addresses["GRPCInferenceService"])
        exec(compile(code, "getting-started.md", "exec"), {})
        assert capsys.readouterr().out.strip() == "[[2. 4. 6.]]"


def test_model_without_a_configuration_describes_itself(documented):
    with urllib.request.urlopen(f"http://{documented.url}/v2/models/described/config", timeout=60) as reply:
        config = json.load(reply)
    assert config["max_batch_size"] == 8
    assert [tensor["name"] for tensor in config["input"] + config["output"]] == ["INPUT0", "OUTPUT0"]


@pytest.mark.thorough
def test_the_quickest_way_of_the_development_loop(tmp_path):
    page = (ROOT / "docs" / "authors" / "development.md").read_text()
    new, served, asked = (
        re.search(rf"^\$ pybackend ({name} [^#\n]*)", page, re.MULTILINE)[1] for name in ("new", "dev", "infer")
    )
    command = (sys.executable, "-m", "pybackend")
    subprocess.run([*command, *shlex.split(new)], check=True, cwd=tmp_path, capture_output=True)
    _, directory = shlex.split(served)
    infer = ["infer", "--repository", directory, *shlex.split(asked)[1:]]
    done = subprocess.run([*command, *infer], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["Y  FP32 [1,3]  [[2., 4., 6.]]"]), done.stderr
