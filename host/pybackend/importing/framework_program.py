"""Computes answers with the framework alone, in a separate process: the served answers are compared with these.

It shares no code with the server or its backends, and runs in the model's environment with any CPython from 3.8 on. Standard
input has a JSON object: ``kind``, ``path`` (of the model's file), ``config`` (complete) and ``requests``. Standard output gets
a list with a list of ``{"name", "data"}`` for each request.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

_TYPES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32", "BYTES": "object"}


def main() -> None:
    """Answer the question on standard input."""
    question = json.load(sys.stdin)
    # Libraries print to standard output when they please.
    answers, sys.stdout = sys.stdout, sys.stderr
    predict = _PREDICTORS[question["kind"]](question["path"], question["config"])
    documents = []
    for request in question["requests"]:
        outputs = predict({tensor["name"]: _array(tensor) for tensor in request["inputs"]})
        documents.append([{"name": name, "data": _listed(value)} for name, value in outputs.items()])
    json.dump(documents, answers)


def _array(tensor: dict[str, Any]) -> Any:
    numpy = importlib.import_module("numpy")
    dtype = _TYPES.get(tensor["datatype"], tensor["datatype"].lower())
    return numpy.array(tensor["data"], dtype).reshape(tensor["shape"])


def _listed(value: Any) -> list[Any]:
    numpy = importlib.import_module("numpy")
    array = value.toarray() if hasattr(value, "toarray") else numpy.asarray(value)
    flat = array.ravel().tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in flat]


# --- ONNX, forests --------------------------------------------------------------------------------------------------


def _onnx(path: str, config: dict[str, Any]) -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    session = importlib.import_module("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output["name"] for output in config["output"]]
    scalars = {value.name for value in session.get_inputs() if not value.shape}

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        feeds = {name: array.reshape(()) if name in scalars else array for name, array in inputs.items()}
        return dict(zip(names, session.run(names, feeds)))  # noqa: B905  CPython 3.8 has no strict zip

    return predict


def _xgboost(path: str, _config: dict[str, Any]) -> Any:
    numpy, xgboost = importlib.import_module("numpy"), importlib.import_module("xgboost")
    booster = xgboost.Booster()
    booster.load_model(path)
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        rows = xgboost.DMatrix(inputs["input__0"], missing=float("nan"))
        if objective != "multi:softmax":
            return {"output__0": booster.predict(rows, iteration_range=(0, 0))}
        margins = booster.predict(rows, output_margin=True)
        weights = numpy.exp(margins - margins.max(axis=1, keepdims=True))
        return {"output__0": weights / weights.sum(axis=1, keepdims=True)}

    return predict


def _lightgbm(path: str, _config: dict[str, Any]) -> Any:
    booster = importlib.import_module("lightgbm").Booster(model_file=path)
    return lambda inputs: {"output__0": booster.predict(inputs["input__0"], num_iteration=-1)}


def _treelite(path: str, _config: dict[str, Any]) -> Any:
    model = importlib.import_module("treelite").Model.deserialize(path)
    gtil = importlib.import_module("treelite.gtil")
    return lambda inputs: {"output__0": gtil.predict(model, inputs["input__0"])}


# --- scikit-learn ---------------------------------------------------------------------------------------------------

_METHODS = {
    "label": "predict",
    "prediction": "predict",
    "probabilities": "predict_proba",
    "decision": "decision_function",
    "scores": "score_samples",
    "transformed": "transform",
}


def _sklearn(path: str, config: dict[str, Any]) -> Any:
    estimator = _estimator(path)
    names = [output["name"] for output in config["output"] if output["name"] in _METHODS]
    if config["backend"] == "fil":
        return lambda inputs: {"output__0": _forest_answer(estimator, inputs["input__0"])}

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        rows = _rows(estimator, inputs)
        return {name: getattr(estimator, _METHODS[name])(rows) for name in names}

    return predict


def _estimator(path: str) -> Any:
    if path.endswith(".skops"):
        skops = importlib.import_module("skops.io")
        # The server has loaded the file: its types are known to be harmless, or the user allowed them.
        return skops.load(path, trusted=skops.get_untrusted_types(file=path))
    return importlib.import_module("joblib").load(path)


def _rows(estimator: Any, inputs: dict[str, Any]) -> Any:
    """The argument of the estimator: an array, a list of texts, or a table with the columns that it was fitted on."""
    names = getattr(estimator, "feature_names_in_", None)
    array = next(iter(inputs.values()))
    if names is None:
        return array if hasattr(estimator, "n_features_in_") else list(array.ravel())
    pandas = importlib.import_module("pandas")
    if len(inputs) == 1 and array.shape[-1] == len(names):
        return pandas.DataFrame(array, columns=list(names))
    return pandas.DataFrame({name: inputs[str(name)].ravel() for name in names})


def _forest_answer(estimator: Any, rows: Any) -> Any:
    """The answer of a forest as its library gives it; of two classes, the probability of the second one."""
    if not hasattr(estimator, "predict_proba"):
        return estimator.predict(rows)
    return estimator.predict_proba(rows)


# --- PyTorch --------------------------------------------------------------------------------------------------------


def _torchscript(path: str, config: dict[str, Any]) -> Any:
    module = importlib.import_module("torch").jit.load(path, map_location="cpu").eval()
    arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
    return _torch_predictor(module, arguments, config)


def _torch_export(path: str, config: dict[str, Any]) -> Any:
    return _torch_predictor(importlib.import_module("torch").export.load(path).module(), [], config)


def _torch_predictor(module: Any, arguments: list[str], config: dict[str, Any]) -> Any:
    torch = importlib.import_module("torch")
    ordered = [each["name"] for each in config["input"]]
    if set(ordered) <= set(arguments):
        ordered = [name for name in arguments if name in ordered]
    outputs = [each["name"] for each in config["output"]]

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        given = [torch.from_numpy(inputs[name]) for name in ordered if name in inputs]
        with torch.no_grad():
            result = module(*given)
        if not isinstance(result, dict):
            listed = result if isinstance(result, (tuple, list)) else [result]
            result = dict(zip(outputs, listed))  # noqa: B905  CPython 3.8 has no strict zip
        return {name: value.float() if value.dtype == torch.bfloat16 else value for name, value in result.items()}

    return predict


_PREDICTORS = {
    "onnx": _onnx,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "treelite": _treelite,
    "sklearn": _sklearn,
    "torchscript": _torchscript,
    "torch_export": _torch_export,
}

if __name__ == "__main__":
    main()
