"""Directories of MLflow: flavors, signatures, packages and examples."""

from __future__ import annotations

import json
import sys

import pytest

from pybackend.errors import ServerError
from pybackend_testing import LoadError, ModelHarness
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.kinds import JOBLIB, LIGHTGBM, MLFLOW, PICKLE

yaml = pytest.importorskip("yaml")

PICKLED = b"\x80\x04."
FOREST = b"tree\nversion=v4\nend of trees\n"
COLUMNS = [{"type": "double", "name": "age", "required": True}, {"type": "string", "name": "city", "required": False}]
NUMBERS = [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]
LABELS = [{"type": "long", "required": True}]


@pytest.fixture
def write(tmp_path):
    """Writes a directory: ``write({flavor: keys}, signature, **{name: content})``."""

    def write(flavors, signature=None, more=None, **files):
        document = {"flavors": flavors, **(more or {})}
        if signature is not None:
            document["signature"] = {side: json.dumps(columns) for side, columns in signature.items()}
        (tmp_path / "MLmodel").write_text(yaml.safe_dump(document))
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write


def test_a_native_file_is_found_with_its_columns_packages_and_example(write):
    path = write(
        {"python_function": {}, "sklearn": {"pickled_model": "model.pkl"}},
        {"inputs": COLUMNS, "outputs": LABELS},
        {"saved_input_example_info": {"artifact_path": "input_example.json"}},
        model__pkl=PICKLED,
        requirements__txt="mlflow==3.1\n# a comment\nscikit-learn==1.5.0\n\n",
        input_example__json='{"columns": ["age", "city"], "data": [[3.0, "Rome"], [4.0, "Bern"]]}',
    )
    found = detect(path)
    assert (found.kind, found.source, found.main) == (PICKLE, path, "model.pkl")
    assert found.requirements == ["scikit-learn==1.5.0"]
    assert found.examples == {"age": 3.0, "city": "Rome"}
    with_columns, without = found.configurations
    assert without == {"parameters": {"MLFLOW_COLUMNS": {"string_value": '["age", "city"]'}}}
    assert with_columns["input"] == [
        {"name": "age", "data_type": "TYPE_FP64", "dims": [1]},
        {"name": "city", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ]
    (path / "model.pkl").write_bytes(PICKLED + b"joblib")
    assert detect(path).kind is JOBLIB
    (path / "requirements.txt").unlink()
    (path / "conda.yaml").write_text(yaml.safe_dump({"dependencies": ["python=3.11", {"pip": ["mlflow", "numpy<3"]}]}))
    assert detect(path).requirements == ["numpy<3"]


def test_forests_keep_their_own_tensors(write):
    path = write({"lightgbm": {"data": "model.lgb"}}, {"inputs": NUMBERS, "outputs": LABELS}, model__lgb=FOREST)
    found = detect(path)
    assert (found.kind, list(found.configurations)) == (LIGHTGBM, [{}])


def test_python_function_takes_over_where_no_backend_serves_the_flavor(write):
    flavors = {"python_function": {"loader_module": "mlflow.prophet"}, "prophet": {"data": "model.pr"}}
    path = write(flavors, {"inputs": COLUMNS, "outputs": LABELS}, requirements__txt="mlflow==3.1\nprophet\n")
    found = detect(path)
    assert (found.kind, found.main, list(found.texts)) == (MLFLOW, "mlflow_model", ["model.py"])
    assert found.requirements == ["mlflow==3.1", "prophet"]
    (configuration,) = found.configurations
    assert configuration["max_batch_size"] > 1
    assert [each["name"] for each in configuration["input"]] == ["age", "city"]
    assert configuration["output"] == [{"name": "output", "data_type": "TYPE_INT64", "dims": [1]}]
    path = write(flavors, {"inputs": NUMBERS, "outputs": NUMBERS})
    (configuration,) = detect(path).configurations
    assert configuration["input"] == [{"name": "input", "data_type": "TYPE_FP32", "dims": [4]}]


def test_a_model_whose_packages_are_missing_says_how_to_get_them(write, tmp_path_factory, monkeypatch):
    found = detect(write({"python_function": {}}, {"inputs": COLUMNS, "outputs": LABELS}))
    entry = tmp_path_factory.mktemp("entry")
    (entry / "1").mkdir()
    (entry / "1" / "model.py").write_text(found.texts["model.py"])
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    way_out = (
        r"its Python has no module 'mlflow.*`pybackend pack` of the requirements\.txt .* with --environment=ARCHIVE"
    )
    with pytest.raises(LoadError, match=way_out):
        ModelHarness(entry, config=found.configurations[0]).open()


def test_python_function_can_be_chosen(write):
    path = write(
        {"python_function": {}, "lightgbm": {"data": "model.lgb"}},
        {"inputs": COLUMNS, "outputs": LABELS},
        model__lgb=FOREST,
    )
    assert detect(path, flavor="python_function").kind is MLFLOW


def test_what_is_missing_or_broken_is_named(write):
    flavors = {"python_function": {}, "lightgbm": {"data": "model.lgb"}}
    for arguments, words in (
        (({},), "names no flavors"),
        ((flavors,), "names model.lgb for the flavor lightgbm, and .* does not hold it: copy it there"),
        (({"lightgbm": {"data": "../model.lgb"}},), "outside of"),
        (({"spark": {}},), "has the flavors spark, and no backend serves any of them"),
        (({"python_function": {}},), "has no signature with inputs: save the model with signature="),
        (({"python_function": {}}, {"inputs": COLUMNS}), "has no signature with outputs"),
        (({"python_function": {}}, {"inputs": [{"type": "array", "name": "x"}]}), "inputs of the type 'array'"),
        (({"python_function": {}}, {"inputs": 5}), "the inputs of the signature cannot be read"),
    ):
        path = write(*arguments)
        with pytest.raises(ServerError, match=words):
            detect(path)
    path = write(flavors, model__lgb=FOREST[:15])
    with pytest.raises(ServerError, match="is a truncated LightGBM model"):
        detect(path)
    (path / "MLmodel").write_text("{")
    with pytest.raises(ServerError, match="MLmodel is not YAML with a mapping"):
        detect(path)
