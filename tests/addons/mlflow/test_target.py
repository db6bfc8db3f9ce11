"""MLflow's own clients, unmodified: the deployment target of ``mlflow.deployments``, and the client of its scoring
server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from pybackend.ports import free_ports
from tests.support.server import serving

pandas = pytest.importorskip("pandas")
requests = pytest.importorskip("requests")
with warnings.catch_warnings():  # MLflow's own
    warnings.simplefilter("ignore")
    mlflow = pytest.importorskip("mlflow")
    for module in ("deployments", "models", "pyfunc", "pyfunc.scoring_server.client", "sklearn"):
        pytest.importorskip(f"mlflow.{module}")
scoring_server = mlflow.pyfunc.scoring_server
MlflowException = mlflow.exceptions.MlflowException
ScoringServerClient = scoring_server.client.ScoringServerClient

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # MLflow's own
]

START_S = 300
ROWS = pandas.DataFrame({"age": [1.0, 2.0, 7.5, 8.5], "rooms": [3, 1, 2, 5]})
LABELS = np.array([0, 0, 1, 1])


class Scaled(mlflow.pyfunc.PythonModel):
    """A table with a factor that each request may choose."""

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        factor = (params or {}).get("factor", 1.0)
        return pandas.DataFrame({"half": model_input["age"] * factor / 2, "word": model_input["word"] + "!"})


class Broken(mlflow.pyfunc.PythonModel):
    """A model that does not start."""

    def load_context(self, context):  # type: ignore[no-untyped-def]
        raise RuntimeError("no weights")

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        return model_input


def save_classifier(path: Path, *, turned: bool = False) -> Path:
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression().fit(ROWS, 1 - LABELS if turned else LABELS)
    signature = mlflow.models.infer_signature(ROWS, estimator.predict(ROWS))
    mlflow.sklearn.save_model(estimator, str(path), signature=signature, serialization_format="cloudpickle")
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    words = ROWS[["age"]].assign(word=["a", "b", "c", "d"])
    answer = Scaled().predict(None, words)
    signature = mlflow.models.infer_signature(words, answer, params={"factor": 1.0})
    mlflow.pyfunc.save_model(str(root / "scaled"), python_model=Scaled(), signature=signature)
    mlflow.pyfunc.save_model(str(root / "broken"), python_model=Broken(), signature=signature)
    save_classifier(root / "classifier")
    save_classifier(root / "turned", turned=True)
    return root


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    flags = ("--model-control-mode=explicit", "--allow-mlflow", "--strict-readiness=false")
    with serving(repository, flags=flags) as server:
        server.repository = repository
        yield server


@pytest.fixture
def target(server):
    return mlflow.deployments.get_deploy_client(f"pybackend:http://{server.url}")


def predicted(target, name, inputs):
    return target.predict(name, inputs)["predictions"]


def test_a_deployment_is_created_asked_replaced_and_deleted(target, saved):
    created = target.create_deployment("churn", str(saved / "classifier"))
    assert (created["name"], created["state"], created["versions"]) == ("churn", "READY", ["1"])
    assert [each["name"] for each in created["inputs"]] == ["age", "rooms"]
    assert {**target.get_deployment("churn"), "flavor": "python_function"} == created
    assert "churn" in [each["name"] for each in target.list_deployments()]
    own = mlflow.pyfunc.load_model(str(saved / "classifier")).predict(ROWS).tolist()
    assert own == LABELS.tolist()
    by_column = {name: ROWS[name].to_numpy() for name in ROWS}
    for inputs in (ROWS, ROWS[["rooms", "age"]], ROWS.to_numpy(), by_column, ROWS.to_numpy().tolist()):
        assert predicted(target, "churn", inputs) == own
    with pytest.raises(MlflowException, match="the deployment 'churn' exists") as raised:
        target.create_deployment("churn", str(saved / "classifier"))
    assert raised.value.error_code == "RESOURCE_ALREADY_EXISTS"
    target.update_deployment("churn", str(saved / "turned"))
    assert predicted(target, "churn", ROWS) == (1 - LABELS).tolist()
    for _ in range(2):
        target.delete_deployment("churn")
    with pytest.raises(MlflowException) as raised:
        target.get_deployment("churn")
    assert raised.value.error_code == "RESOURCE_DOES_NOT_EXIST"


def test_a_deployment_in_the_servers_repository_gets_versions(target, server, saved):
    config = {"repository": str(server.repository)}
    target.create_deployment("kept", str(saved / "classifier"), flavor="sklearn", config=config)
    assert target.get_deployment("kept")["inputs"][0]["name"] == "age"
    target.update_deployment("kept", str(saved / "turned"), flavor="sklearn", config=config)
    assert target.get_deployment("kept")["versions"] == ["2"]
    assert predicted(target, "kept", ROWS)["label"] == (1 - LABELS).tolist()
    target.delete_deployment("kept", config=config)
    assert not (server.repository / "kept").exists()


def test_a_model_that_does_not_start_leaves_nothing_in_the_repository(target, server, saved):
    config = {"repository": str(server.repository)}
    with pytest.raises(MlflowException, match="no weights"):
        target.create_deployment("frail", str(saved / "broken"), config=config)
    assert not (server.repository / "frail").exists()
    target.create_deployment("frail", str(saved / "classifier"), config=config)
    with pytest.raises(MlflowException, match="no weights"):
        target.update_deployment("frail", str(saved / "broken"), config=config)
    assert [each.name for each in (server.repository / "frail").iterdir() if each.is_dir()] == ["1"]
    assert predicted(target, "frail", ROWS) == LABELS.tolist()
    target.delete_deployment("frail", config=config)


def test_wrong_deployments_are_refused_with_the_way_out(target, server, saved, tmp_path):
    for arguments, message in (
        (("m", str(tmp_path)), "it has no file MLmodel"),
        (("m", str(saved / "classifier"), "prophet"), "and no backend serves the flavor prophet"),
        (("m", str(saved / "classifier"), None, {"replicas": 2}), "knows no 'replicas' in the configuration"),
        (("m", str(saved / "classifier"), None, {"environment": "/nix"}), "is no file: `pybackend pack` makes one"),
        (("m", str(saved / "classifier"), None, None, "e"), "has no endpoints"),
        (("m", str(saved / "classifier"), None, {"timeout": "soon"}), "timeout=soon is no number of seconds"),
        (("../m", str(saved / "classifier"), None, {"repository": str(server.repository)}), "'../m' is no name of a"),
    ):
        with pytest.raises(MlflowException, match=message):
            target.create_deployment(*arguments)
    with pytest.raises(MlflowException, match="there is no deployment 'm'"):
        target.update_deployment("m", str(saved / "classifier"))
    assert not (server.repository.parent / "m").exists()
    with pytest.raises(MlflowException, match=r"'\.\./m' is no name of a deployment"):
        target.delete_deployment("../m", {"repository": str(server.repository)})
    with pytest.raises(MlflowException, match="unknown model"):
        target.predict("m", ROWS)
    for inputs in (object(), {"age": [object()]}, "no JSON"):
        with pytest.raises(MlflowException, match="these inputs cannot be written as JSON"):
            target.predict("m", inputs)
    absent = mlflow.deployments.get_deploy_client("pybackend:http://127.0.0.1:1")
    with pytest.raises(MlflowException, match=r"no server answers at http://127\.0\.0\.1:1"):
        absent.list_deployments()
    with pytest.raises(MlflowException, match="is not the URL of a server"):
        mlflow.deployments.get_deploy_client("pybackend:ftp://x")


BODIES = (
    {"dataframe_split": {"columns": ["word", "age"], "data": [["x", 1], ["y", 2.5]]}},
    {"dataframe_split": {"columns": ["age", "word"], "data": [[1, "x"]]}, "params": {"factor": 4.0}},
    {"dataframe_records": [{"age": 1.0, "word": "x"}, {"word": "y", "age": 3.0}]},
    {"instances": [{"age": 1.0, "word": "x"}, {"age": 2.0, "word": "y"}]},
    {"inputs": {"age": [1.0, 2.0], "word": ["x", "y"]}},
)


def test_answers_equal_those_of_mlflows_own_server(target, server, saved):
    target.create_deployment("scaled", str(saved / "scaled"))
    own = mlflow.pyfunc.load_model(str(saved / "scaled"))
    schema = own.metadata.get_input_schema()
    url = f"http://{server.url}/v2/models/scaled/invocations"
    requests_made = [(json.dumps(body), "application/json") for body in BODIES] + [
        ("age,word\n1.5,x\n2,y\n", "text/csv")
    ]
    for body, kind in requests_made:
        expected = json.loads(scoring_server.invocations(body, kind, own, schema).response)
        response = requests.post(url, data=body, headers={"Content-Type": kind}, timeout=60)
        assert (response.status_code, response.json()) == (200, expected), body
    for body in ('{"inputs": ', "[]", "{}", '{"inputs": {"age": [1]}}'):
        with pytest.raises(MlflowException) as raised:
            scoring_server.invocations(body, "application/json", own, schema)
        response = requests.post(url, data=body, headers={"Content-Type": "application/json"}, timeout=60)
        assert response.status_code == raised.value.get_http_status_code() == 400
        assert response.json().keys() >= {"error_code", "message"}
    target.delete_deployment("scaled")


def test_the_scoring_client_and_the_command_line(target, server, saved, tmp_path):
    ScoringServerClient(*server.url.split(":")).ping()
    address = f"pybackend:http://{server.url}"
    base = [sys.executable, "-m", "mlflow", "deployments"]

    def run(*arguments):
        done = subprocess.run([*base, *arguments], capture_output=True, text=True, check=False, timeout=START_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "-C NAME=VALUE" in run("help", "-t", "pybackend")
    run("create", "-t", address, "--name", "one", "-m", str(saved / "classifier"))
    only = ScoringServerClient(*server.url.split(":"))
    assert only.invoke(ROWS).get_predictions()[0].tolist() == LABELS.tolist()
    (tmp_path / "rows.json").write_text(ROWS.to_json())
    text = run("predict", "-t", address, "--name", "one", "-I", str(tmp_path / "rows.json"))
    assert json.loads(text.splitlines()[-1])["predictions"] == LABELS.tolist()
    run("delete", "-t", address, "--name", "one")
    (port,) = free_ports("127.0.0.1")
    command = [*base, "run-local", "-t", "pybackend", "--name", "near", "-m", str(saved / "classifier")]
    with subprocess.Popen([*command, "-C", f"port={port}"], start_new_session=True) as local:
        try:
            near = ScoringServerClient("127.0.0.1", port)
            near.wait_server_ready(START_S, local)
            assert near.invoke(ROWS.to_numpy()).get_predictions()[0].tolist() == LABELS.tolist()
        finally:
            os.killpg(local.pid, signal.SIGINT)
