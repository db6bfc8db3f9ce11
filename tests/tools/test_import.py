"""``pybackend import`` and ``export-config``: entries load, answer, pass their tests, and failures leave nothing."""

import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pybackend.cli import main
from pybackend.modelconfig.parser import parse_config_text
from tests.support.gates import wait_until
from tests.support.inference import infer
from tests.support.server import serving

pytestmark = pytest.mark.e2e

DEADLINE_S = 150
"""Frameworks take seconds to import, and more where the machine is busy."""


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **options,
    )


def test_a_repository_is_named_with_its_flag():
    done = run("pybackend", "import", "mood.pkl", "models")
    assert "Unexpected argument: models. Name the directory of models with a flag: --repository=models" in done.stderr


def imported(*arguments):
    """Imports with ``--json`` and returns the document that the command prints."""
    done = run("pybackend", "import", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory):
    """An ONNX file whose weights are in a second file."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    floats = onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [onnx.helper.make_tensor_value_info("x", floats, ["rows", 4])],
        [onnx.helper.make_tensor_value_info("y", floats, ["rows", 3])],
        [weights],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("onnx") / "Scores of today.dat"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@pytest.fixture(scope="module")
def repository(onnx_file, tmp_path_factory):
    """A repository that the import has made, with one verified model."""
    directory = tmp_path_factory.mktemp("new") / "models"
    said = imported(onnx_file, "--repository", directory, "--verify")
    assert (said["model"], said["backend"], said["kind"]) == ("Scores_of_today", "onnxruntime", "ONNX model")
    verified = said["verified"]
    assert verified["requests"] == 8
    assert verified["largest_difference"] < 1e-6
    assert all(verified[name] > 0 for name in ("latency_p50_s", "cpu_s", "memory_bytes", "start_s"))
    return directory


def test_an_entry_is_complete(repository):
    assert [path.name for path in repository.iterdir()] == ["Scores_of_today"]
    entry = repository / "Scores_of_today"
    assert sorted(str(path.relative_to(entry)) for path in entry.rglob("*") if path.is_file()) == [
        "1/model.onnx/model.onnx",
        "1/model.onnx/weights.bin",
        "config.pbtxt",
        "sample_answer_1.json",
        "sample_request.json",
        "test_Scores_of_today.py",
    ]
    assert (entry / "config.pbtxt").read_text() == (
        "max_batch_size: 4\n"
        'input {\n  name: "x"\n  data_type: TYPE_FP32\n  dims: [4]\n}\n'
        'output {\n  name: "y"\n  data_type: TYPE_FP32\n  dims: [3]\n}\n'
        'dynamic_batching {\n}\nbackend: "onnxruntime"\n'
    )
    done = run("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", entry, cwd=entry, env=_without_pytest())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_answers_the_sample_and_exports_the_configuration(repository, capsys, tmp_path):
    entry = repository / "Scores_of_today"
    with serving(repository) as server:
        request = (entry / "sample_request.json").read_bytes()
        answer = server.request("POST", "/v2/models/Scores_of_today/infer", request).json
        assert [each["data"] for each in answer["outputs"]] == [
            each["data"] for each in json.loads((entry / "sample_answer_1.json").read_text())["outputs"]
        ]
        url = f"--url=http://{server.url}"
        assert main(["export-config", "Scores_of_today", url]) == 0
        complete = parse_config_text(capsys.readouterr().out, "printed")
        assert complete == server.get("/v2/models/Scores_of_today/config").json
        assert main(["export-config", "Scores_of_today", url, "--minimal", f"--output={tmp_path / 'c.pbtxt'}"]) == 0
        minimal = (tmp_path / "c.pbtxt").read_text()
        assert (entry / "config.pbtxt").read_text() == minimal
        assert main(["export-config", "nothing", url]) == 1
        assert capsys.readouterr().err.startswith("error: Request for unknown model: 'nothing'")


@pytest.mark.thorough
def test_a_model_that_exists_is_replaced_only_on_request(repository, onnx_file, capsys):
    flags = [str(onnx_file), f"--repository={repository}"]
    assert main(["import", *flags]) == 1
    assert capsys.readouterr().err.endswith(
        "Scores_of_today exists already: --force replaces it, --name=NAME chooses another name, and `pybackend import --version=2` adds a version\n"
    )
    assert main(["import", *flags, "--version=1"]) == 1
    assert (
        "Scores_of_today/1 exists already: --force replaces it, --version=N chooses another" in capsys.readouterr().err
    )
    before = (repository / "Scores_of_today/config.pbtxt").stat().st_ino
    assert imported(*flags, "--version=2")["version"] == 2
    assert (repository / "Scores_of_today/2/model.onnx/model.onnx").exists()
    assert (repository / "Scores_of_today/sample_answer_2.json").exists()
    assert (repository / "Scores_of_today/config.pbtxt").stat().st_ino == before


def test_a_configuration_is_exported_by_starting_the_model(tmp_path, repository):
    entry = tmp_path / "models" / "short"
    entry.mkdir(parents=True)
    (entry / "1").symlink_to(repository / "Scores_of_today" / "1")
    done = run("pybackend", "export-config", tmp_path / "models", "--minimal")
    assert (done.returncode, done.stderr) == (0, "")
    full = (repository / "Scores_of_today/config.pbtxt").read_text()
    assert full == done.stdout


def test_an_entry_can_be_renamed(repository, tmp_path):
    shutil.copytree(repository / "Scores_of_today", tmp_path / "models" / "scores")
    with serving(tmp_path / "models") as server:
        assert server.get("/v2/models/scores/ready").status == 200


@pytest.mark.thorough
def test_the_warnings_of_a_server_are_shown(tmp_path):
    """A classifier as skl2onnx writes it by default: its probabilities are maps, which are no tensor."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, proto = onnx.helper, onnx.TensorProto
    maps = make.make_sequence_type_proto(
        make.make_map_type_proto(proto.INT64, make.make_tensor_type_proto(proto.FLOAT, []))
    )
    graph = make.make_graph(
        [
            make.make_node("ZipMap", ["x"], ["output_probability"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
            make.make_node("ArgMax", ["x"], ["label"], axis=1),
        ],
        "graph",
        [make.make_tensor_value_info("x", proto.FLOAT, ["rows", 2])],
        [
            make.make_tensor_value_info("label", proto.INT64, ["rows", 1]),
            make.make_value_info("output_probability", maps),
        ],
    )
    opsets = [make.make_opsetid("", 17), make.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "iris.onnx")
    done = run("pybackend", "import", tmp_path / "iris.onnx", f"--repository={tmp_path / 'models'}")
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^warning: .*output_probability.*zipmap=False gives its prob", done.stderr, re.MULTILINE)
    assert len(lines) == 1, done.stderr


@pytest.mark.thorough
def test_a_pickle_with_strings_is_imported_when_it_is_trusted(tmp_path, capsys):
    pytest.importorskip("sklearn")
    joblib = pytest.importorskip("joblib")
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = ["good food", "bad food", "good", "bad"], ["yes", "no", "yes", "no"]
    pipeline = make_pipeline(HashingVectorizer(n_features=8), LogisticRegression()).fit(texts, labels)
    joblib.dump(pipeline, tmp_path / "mood.bin")
    flags = [str(tmp_path / "mood.bin"), f"--repository={tmp_path / 'models'}"]
    assert main(["import", *flags]) == 1
    assert (
        "reading one runs any code that its writer put into it: if you trust the model, add" in capsys.readouterr().err
    )
    assert imported(*flags, "--trust-pickle")["kind"] == "pickle of joblib"
    request = json.loads((tmp_path / "models/mood/sample_request.json").read_text())
    assert [(each["name"], each["datatype"], each["shape"]) for each in request["inputs"]] == [
        ("text", "BYTES", [1, 1])
    ]
    config = parse_config_text((tmp_path / "models/mood/config.pbtxt").read_text(), "written")
    assert config["parameters"]["PICKLE"] == {"string_value": "trusted"}
    (output,) = [each for each in config["output"] if each["name"] == "probabilities"]
    assert output["label_filename"] == "labels.txt"
    assert (tmp_path / "models/mood/labels.txt").read_text() == "no\nyes\n"


@pytest.mark.thorough
def test_an_imported_classifier_keeps_the_names_of_its_classes(tmp_path, capsys):
    """The label file names the columns of the probabilities in their order, whatever the order in the data was."""
    pytest.importorskip("sklearn")
    skops = pytest.importorskip("skops.io")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression

    points, animals = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], ["owl", "cat", "dog"]
    estimators = {
        "animals": LogisticRegression().fit(points, animals),
        "numbers": LogisticRegression().fit(points, [0, 1, 2]),
        "years": RandomForestClassifier(2, random_state=0).fit(points, [1999, 2004, 2001]),
        "line": LinearRegression().fit(points, [0, 1, 2]),
    }
    for name, estimator in estimators.items():
        skops.dump(estimator, tmp_path / f"{name}.skops")
        flags = ["--backend=fil"] if name == "years" else []
        assert main(["import", str(tmp_path / f"{name}.skops"), f"--repository={tmp_path / 'models'}", *flags]) == 0
    said = capsys.readouterr().out
    assert f"its 3 classes are in {tmp_path}/models/animals/labels.txt: cat, dog, owl\n" in said
    labels = {name: tmp_path / "models" / name / "labels.txt" for name in estimators}
    assert {name: path.read_text().split() for name, path in labels.items() if path.exists()} == {
        "animals": ["cat", "dog", "owl"],
        "years": ["1999", "2001", "2004"],
    }
    assert [path.name for path in (tmp_path / "models").iterdir() if path.name.startswith(".")] == []
    with serving(tmp_path / "models") as server:
        inputs = {"input": np.array([[0.0, 5.0]])}
        answer = infer(
            server, "animals", inputs, outputs=[{"name": "probabilities", "parameters": {"classification": 1}}]
        )
        assert [text.split(b":")[1:] for text in answer["probabilities"].ravel()] == [[b"1", b"dog"]]


USURPS = """
import sys
import numpy as np
import triton_python_backend_utils as pb_utils
for module in list(sys.modules.values()):
    if hasattr(module, "_PREDICTORS"):
        module.TritonPythonModel.execute = lambda _, requests: [
            pb_utils.InferenceResponse([pb_utils.Tensor("answer", np.array([ANSWER], object))]) for _ in requests
        ]
"""


class Usurper:
    """A pickle that is a model, and answers in place of the program that asks the framework."""

    def __init__(self, model, answer):
        self._text = f"(exec({USURPS.replace('ANSWER', repr(answer))!r}, {{}}), __import__('pickle').loads({pickle.dumps(model)!r}))[1]"

    def __reduce__(self):
        return eval, (self._text,)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("no JSON", "its process does not answer with lists of values"),
        ('[{"name": "label", "data": [{}]}]', "its process does not answer with lists of values"),
        (
            '[{"name": "label", "data": ["x"]}]',
            "output 'label' is served as numbers, and the framework's values are not",
        ),
    ],
)
def test_code_in_a_file_that_answers_for_the_framework_ends_in_a_sentence(tmp_path, answer, said):
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    (tmp_path / "usurper.pkl").write_bytes(pickle.dumps(Usurper(model, answer)))
    done = run(
        "pybackend", "import", tmp_path / "usurper.pkl", f"--repository={tmp_path}/models", "--trust-pickle", "--verify"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


WAITS = """
import pathlib
import time


class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path(args["model_repository"], "reached").touch()
        while True:
            time.sleep(0.1)

    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 128 + signal.SIGINT)])
@pytest.mark.thorough
def test_an_interrupted_import_leaves_nothing(tmp_path, onnx_file, number, status):
    (tmp_path / "backends/waits").mkdir(parents=True)
    (tmp_path / "backends/waits/model.py").write_text(WAITS)
    tensor = '{ name: "x" data_type: TYPE_FP32 dims: 4 }'
    (tmp_path / "config.pbtxt").write_text(f"input {tensor} output {tensor}")
    repository = tmp_path / "new" / "models"
    serve_flags = [f"--backend-directory={tmp_path / 'backends'}", "--exit-timeout-secs=1", "--sandbox=off"]
    flags = ["--backend=waits", f"--config={tmp_path / 'config.pbtxt'}", f"--repository={repository}"]
    command = [sys.executable, "-m", "pybackend", "import", str(onnx_file), *flags, "--", *serve_flags]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            found = lambda: list(repository.glob(".pybackend-import-*/*/reached"))  # noqa: E731
            wait_until(found, "the model was never started", DEADLINE_S)
            process.send_signal(number)
            assert process.wait(DEADLINE_S) == status
        finally:
            process.kill()
    assert not (tmp_path / "new").exists()


@pytest.mark.thorough
def test_a_model_that_does_not_load_leaves_nothing(tmp_path, onnx_file):
    path = tmp_path / "broken"
    path.write_bytes(onnx_file.read_bytes().replace(b"MatMul", b"MatMal"))
    (tmp_path / "weights.bin").write_bytes((onnx_file.parent / "weights.bin").read_bytes())
    repository = tmp_path / "models"
    done = run("pybackend", "import", path, "--repository", repository)
    assert done.returncode == 1
    assert re.fullmatch(rf"error: model 'broken': ONNX Runtime .* cannot load {path}: .*MatMal.*\n", done.stderr), (
        done.stderr
    )
    assert not repository.exists()


def _zip(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"{}")
    return path


def test_bad_input_is_refused_in_one_sentence(tmp_path, onnx_file, capsys):
    """Before anything is started or written."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"\x08\x01")
    lightgbm = b"tree\nversion=v4\n"
    for name in ("a.txt", "b.txt"):
        (tmp_path / "two" / name).write_bytes(lightgbm + b"end of trees\n")
    cases = {
        tmp_path / "nothing": "does not exist: name the file or the directory of a model",
        tmp_path / "empty": "is a directory of no known kind; it holds nothing. Accepted are ONNX, ",
        tmp_path / "saved" / "saved_model.pb": "is a part of a TensorFlow SavedModel: name its directory, ",
        tmp_path / "two": "holds 2 models, a.txt (a LightGBM model), b.txt (a LightGBM model): name one of the files",
        _zip(
            tmp_path / "keras.onnx", "config.json", "metadata.json"
        ): "is a Keras archive: save the model as a SavedModel",
        _zip(
            tmp_path / "weights.pt", "weights/data.pkl"
        ): "is a pickle of torch.save, which needs the code of its class",
        _zip(tmp_path / "some.skops", "a", "b"): "is a zip archive of an unknown kind; it holds a, b. Accepted are",
    }
    for name, data, words in (
        ("zero.onnx", b"", "is empty: copy it again"),
        ("cut.onnx", onnx_file.read_bytes()[:-5], "is a truncated ONNX model: copy it again"),
        ("cut.txt", lightgbm, "is a truncated LightGBM model"),
        ("cut.json", b'{"learner":{"a', "is an XGBoost model in JSON that is truncated or damaged"),
        ("other.json", b'{"a": 1}', "is a JSON file of an unknown kind, with the keys a. Accepted are"),
        ("cut.skops", b"PK\x03\x04abc", "is a truncated or damaged archive"),
        ("keras.onnx5", b"\x89HDF\r\n", "is an HDF5 file, as Keras writes them"),
        ("weights", struct.pack("<Q", 16) + b'{"a": 1}', "is a file of safetensors, which has weights only"),
        ("text.onnx", b"some words", "is a file of an unknown kind; it begins with 73 6f 6d 65"),
        ("lonely.onnx", onnx_file.read_bytes(), "keeps tensors in 'weights.bin', which is not in"),
    ):
        (tmp_path / name).write_bytes(data)
        cases[tmp_path / name] = words
    for path, words in cases.items():
        assert main(["import", str(path), f"--repository={tmp_path / 'models'}"]) == 1
        said = capsys.readouterr().err
        assert words in said, path
        assert said.startswith("error: ")
        assert said.count("\n") == 1
    for flags, words in (
        (["--name=a/b"], "must not contain path traversal"),
        (
            ["--repository=/dev/null/models"],
            "cannot write /dev/null/models: Not a directory: choose another --repository",
        ),
        (["--repository=/proc/models"], "cannot write /proc/models: "),
        (["--parameter=x"], "expected NAME=VALUE"),
        (["--environment=nowhere"], "the environment nowhere does not exist"),
        (["--sample=nowhere"], "cannot read nowhere"),
        (["--sample", str(tmp_path / "other.json")], "is no request in JSON"),
        (["--vrify"], "Did you mean --verify?"),
    ):
        assert main(["import", str(onnx_file), *flags]) == 1
        assert words in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def _without_pytest():
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}


def test_a_slow_import_says_what_it_does(tmp_path, onnx_file, capsys, monkeypatch):
    monkeypatch.setattr("pybackend.cli.output.SLOW_S", 0.0)
    assert main(["import", str(onnx_file), f"--repository={tmp_path / 'models'}"]) == 0
    assert capsys.readouterr().err.startswith("the model is loading, and its framework with it ...\n")
