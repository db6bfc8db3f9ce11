"""``pybackend check``: every mistake in a repository, without running a model."""

import contextlib
import io
import json
import os
import pickle
import re
import sys

import pytest

from pybackend.cli.commands import run
from tests.support.ensembles import step, write_ensemble
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 0
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: {datatype} dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "{part}" model_version: -1
  input_map {{ key: "{input}" value: "IN" }}
  output_map {{ key: "OUT" value: "OUT" }}
}} ] }}
"""

WARMUP = """
model_warmup [ { name: "w" batch_size: 1 inputs { key: "IN" value: {
  data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "gone.bin" } } } ]
"""


def ensemble(part, datatype="TYPE_FP32", tensor="IN"):
    return ENSEMBLE.format(part=part, datatype=datatype, input=tensor)


def parameter(key, value):
    return identity_config(extra=f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}')


COMPLETES = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def execute(self, requests):
        return []
"""

STATES = """
sequence_batching { state [ { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ 1 ]
  initial_state: { name: "s" data_type: TYPE_FP32 dims: [ 1 ] data_file: "gone.bin" } } ] }
"""

MODELS = {
    # Each name: the code of its model file, and its configuration.
    "good": (IDENTITY, identity_config()),
    "versions": (IDENTITY, identity_config()),
    "syntax": ("def f(:\n    pass", identity_config()),
    "classless": ("class TritonPythonmodel:\n    def execute(self, requests):\n        return []", identity_config()),
    "imports": ("raise SystemExit('it was imported')\nfrom other import TritonPythonModel", identity_config()),
    "methodless": (
        "class TritonPythonModel:\n    def excute(self, requests):\n        return []\n\n    def finalise(self):\n        pass",
        identity_config(),
    ),
    "assigned": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        self.execute = print",
        identity_config(),
    ),
    "awaits": (
        "class TritonPythonModel:\n    def execute(self, requests):\n        await requests\n        return []",
        identity_config(),
    ),
    "arguments": (
        "class TritonPythonModel:\n    def initialize(self):\n        pass\n\n    def execute(requests):\n        return []\n\n"
        "    def finalize(self, args):\n        pass",
        identity_config(),
    ),
    "more_arguments": (
        "class TritonPythonModel:\n    def initialize(self, args, more=None, *, other=None):\n        pass\n\n"
        "    async def execute(*args):\n        return []\n\n    def finalize(self, *args):\n        pass",
        identity_config(),
    ),
    "field": (IDENTITY, "inptu [ ]"),
    "twice_wrong": ("def f(:", identity_config(extra="max_batch_size: -1")),
    "fileless": (None, identity_config()),
    "warmed": (IDENTITY, identity_config(extra=WARMUP)),
    "misspelt": (IDENTITY, parameter("VALIDATE_OUTPUT", "yes")),
    "elsewhere": (IDENTITY, parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")),
    "no_archive": (IDENTITY, parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/1/model.py")),
    "sandboxed": (IDENTITY, parameter("SANDBOX", "maximal")),
    "completes": (COMPLETES, 'backend: "python"'),
    "completes_wrong": (COMPLETES, identity_config(extra="max_batch_size: -1")),
    "completes_on_gpu": (COMPLETES, 'backend: "python" instance_group { kind: KIND_GPU gpus: [ 77 ] }'),
    "completes_minus_one": (COMPLETES, 'backend: "python" instance_group { kind: KIND_CPU count: -1 }'),
    "completes_unlabelled": (
        COMPLETES,
        'backend: "python" output { name: "OUT" data_type: TYPE_FP32 dims: 2 label_filename: "gone.txt" }',
    ),
    "completes_late": (COMPLETES, parameter("EXECUTION_TIME_LIMIT_S", "soon")),
    "completes_cold": (COMPLETES, f'backend: "python" {WARMUP}'),
    "completes_stateless": (COMPLETES, identity_config(extra=STATES)),
    "fits": (None, ensemble("good")),
    "unfit": (None, ensemble("good", "TYPE_INT32")),
    "unmapped": (None, ensemble("good", tensor="NI")),
    "partless": (None, ensemble("nobody")),
    "of_broken": (None, ensemble("field")),
    "unsure": (None, ensemble("completes")),
    "circle_a": (None, ensemble("circle_b")),
    "circle_b": (None, ensemble("circle_a")),
    "beside_circle": (None, ensemble("circle_a")),
}

OF_THE_MACHINE = re.compile(r"(?<=is not valid Python) .*|(?<=has kind KIND_GPU but) .*")
FINE = {"good", "imports", "assigned", "more_arguments", "completes", "fits", "unsure"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("check")
    for name, (code, config) in MODELS.items():
        write_model(repository, name, code, config)
    (repository / "versions" / "v2").mkdir()
    return repository


@pytest.fixture
def check(capsys):
    """Runs the command in this process: returns the exit status, standard output and standard error."""

    def run_command(*arguments):
        capsys.readouterr()
        status = run(["check", *arguments])
        return status, *capsys.readouterr()

    return run_command


@pytest.fixture(scope="module")
def document(repository):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = run(["check", "--json", str(repository)])
    assert (status, err.getvalue()) == (1, "")
    return json.loads(out.getvalue())


def test_all_models_are_looked_at(document):
    reports = document["models"]
    assert [report["model"] for report in reports] == sorted(MODELS)
    assert document["errors"] == sum(len(report["errors"]) for report in reports)
    assert next(report["versions"] for report in reports if report["model"] == "good") == [1]


@pytest.mark.parametrize("name", MODELS)
def test_every_mistake_is_found(document, repository, name, snapshot):
    (report,) = (report for report in document["models"] if report["model"] == name)
    said = [f"{kind}: {text}" for kind in ("errors", "warnings") for text in report[kind]]
    assert (said == []) == (name in FINE)
    if said:
        text = "\n".join(said).replace(str(repository), "").replace(os.getcwd(), "HERE")
        assert OF_THE_MACHINE.sub(" ...", text) == snapshot


def test_lines_and_exit_statuses(check, repository, tmp_path, snapshot):
    good, warned = str(repository / "good"), str(repository / "misspelt")
    # The directory of one model.
    assert check(good) == (0, "good: ok\n1 model, 0 errors, 0 warnings\n", "")
    status, out, _ = check(warned)
    assert (status, out.splitlines()[-1]) == (0, "1 model, 0 errors, 1 warning")
    assert out == snapshot
    assert check("--strict", warned)[0] == 1
    out = check(str(repository / "twice_wrong"))[1]
    assert [line for line in out.splitlines() if line.startswith("twice_wrong: error: ")][1:], out
    # Names that occur twice, flags of serve, and repositories without models.
    write_model(tmp_path, "good", IDENTITY, identity_config())
    out = check(str(tmp_path), f"--model-repository={repository}")[1]
    assert "good: error: model appears in two or more repositories: " in out
    assert "it has no inputs" in check(str(repository / "completes"), "--disable-auto-complete-config", "--json")[1]
    (tmp_path / "empty").mkdir()
    status, _, err = check(str(tmp_path / "empty"))
    assert (status, err[:20]) == (1, "error: found no mode")
    assert check()[2].splitlines()[-1].startswith("Name a directory of models")


def test_a_hint_at_steps_that_could_share_a_process(check, tmp_path):
    group = 'parameters { key: "PROCESS_GROUP" value: { string_value: "all" } }'
    three = [step("first", {"IN": "IN"}, {"OUT": "x"}), step("second", {"IN": "x"}, {"OUT": "y"}), step("batched", {"IN": "y"}, {"OUT": "OUT"})]  # fmt: skip
    write_ensemble(tmp_path, "chain", three)
    batching = "max_batch_size: 8 dynamic_batching { }"
    for name, extra in (("first", ""), ("second", ""), ("batched", batching)):
        write_model(tmp_path, name, IDENTITY, identity_config(extra=extra))
    report = next(each for each in json.loads(check("--json", str(tmp_path))[1])["models"] if each["model"] == "chain")
    assert report["hints"] == [
        "models 'first' and 'second' could share a process: with the same PROCESS_GROUP among their parameters, these steps run "
        "without the server between them. If one of them crashes, all of them do"
    ]
    status, out, _ = check("--strict", str(tmp_path))
    assert status == 0
    assert "chain: hint: models 'first' and 'second' could share a process" in out
    for extras in ((group, group), ('parameters { key: "ZYGOTE" value: { string_value: "no" } }', "")):
        for name, extra in zip(("first", "second"), extras, strict=True):
            write_model(tmp_path, name, IDENTITY, identity_config(extra=extra))
        assert "hint" not in check(str(tmp_path))[1]
    for name, extra in (("first", group), ("second", group), ("batched", f"{batching} {group}")):
        write_model(tmp_path, name, IDENTITY, identity_config(extra=extra))
    (hint,) = (line for line in check(str(tmp_path))[1].splitlines() if "hint" in line and "PROCESS_GROUP" in line)
    assert hint.startswith(
        "chain: hint: model 'batched' is in PROCESS_GROUP 'all' with other steps, but its requests go through"
    )


def test_files_that_a_load_would_refuse(check, tmp_path):
    """Nothing of them is run: the kind of a file shows that, and for a pickle it suffices."""
    repository, environment = tmp_path / "models", tmp_path / "environment"
    for name, file, data in (
        ("churn", "model.joblib", pickle.dumps({"a": 1}, protocol=4)),
        ("cut", "model.txt", b"tree\nversion=v4\n"),
        ("nothing", "model.tflite", b""),
        ("old", "model.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
        ("own", "model.tflite", b"a format that only the framework knows"),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / file).write_bytes(data)
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "activate").touch()
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "lib/python3.11/site-packages/numpy").mkdir(parents=True)
    flags = [f"--backend-config={name},environment={environment}" for name in ("sklearn", "fil", "litert", "pytorch")]
    said = json.loads(check("--json", str(repository), *flags)[1])["models"]
    wanted = {
        "churn": [
            "needs the Python package sklearn",
            "a pickle, and reading one runs any code that its writer put into it",
        ],
        "cut": ["needs the Python package xgboost or lightgbm or treelite", "is a truncated LightGBM model"],
        "nothing": ["needs the Python package ai_edge_litert or tensorflow", "is empty: copy it again"],
        "old": ["needs the Python package torch", "is an old pickle of torch.save"],
        "own": ["needs the Python package ai_edge_litert or tensorflow"],
    }
    found = {report["model"]: report["errors"] for report in said}
    assert {name: len(errors) for name, errors in found.items()} == {name: len(words) for name, words in wanted.items()}
    for name, words in wanted.items():
        assert all(map(str.__contains__, found[name], words)), found[name]
        assert str(environment) in found[name][0]


def test_a_pickle_is_refused_in_the_words_of_the_load(check, tmp_path):
    pytest.importorskip("sklearn")
    (tmp_path / "churn" / "1").mkdir(parents=True)
    (tmp_path / "churn" / "1" / "model.pkl").write_bytes(pickle.dumps({"a": 1}, protocol=4))
    (error,) = json.loads(check("--json", str(tmp_path))[1])["models"][0]["errors"]
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        (model,) = server.request("POST", "/v2/repository/index").json
        assert error in model["reason"]
