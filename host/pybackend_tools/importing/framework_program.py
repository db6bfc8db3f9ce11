"""Computes answers with the framework alone: the served answers are compared with these.

It is the code of a model that a server runs beside the imported one, with ``probe.py``. It shares no code with
backends, and passes requests and answers as JSON, so that it does not depend on how a server reads tensors. It runs on
any CPython from 3.8 on.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

import probe


class TritonPythonModel:
    """The framework as a model: one request in JSON in, a list of ``{"name", "data"}`` out.

    Its question has the ``kind`` of the file, and the complete ``config``.
    """

    def initialize(self, args: dict[str, str]) -> None:
        asked = probe.question(args)
        self._predict = _PREDICTORS[asked["kind"]](asked["path"], asked["config"])

    def execute(self, requests: list[Any]) -> list[Any]:
        utils, numpy = importlib.import_module("triton_python_backend_utils"), importlib.import_module("numpy")
        responses = []
        for request in requests:
            text = utils.get_input_tensor_by_name(request, "request").as_numpy().item()
            outputs = self._predict(probe.arrays(json.loads(text)))
            answer = json.dumps([{"name": name, "data": _listed(value)} for name, value in outputs.items()])
            tensor = utils.Tensor("answer", numpy.array([answer.encode()], object))
            responses.append(utils.InferenceResponse([tensor]))
        return responses


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
    estimator = probe.estimator(path)
    names = [output["name"] for output in config["output"] if output["name"] in _METHODS]
    if config["backend"] == "fil":
        return lambda inputs: {"output__0": _forest_answer(estimator, inputs["input__0"])}

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        rows = _rows(estimator, inputs)
        return {name: getattr(estimator, _METHODS[name])(rows) for name in names}

    return predict


def _classes(path: str, _config: dict[str, Any]) -> Any:
    """The names of an estimator's classes in the order of its probabilities.

    None of what has no classes, or several sets of them.
    """
    classes = getattr(probe.estimator(path), "classes_", ())
    texts = [] if isinstance(classes, list) else [str(each) for each in importlib.import_module("numpy").ravel(classes)]
    return lambda _inputs: {"classes_": importlib.import_module("numpy").array(texts, object)}


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


# --- TensorFlow, LiteRT ---------------------------------------------------------------------------------------------


def _saved_model(path: str, config: dict[str, Any]) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tensorflow = importlib.import_module("tensorflow")
    parameters = {name: each["string_value"] for name, each in config.get("parameters", {}).items()}
    tags = [parameters["TF_GRAPH_TAG"]] if "TF_GRAPH_TAG" in parameters else None
    model = tensorflow.saved_model.load(path, tags)
    keys = [name for name in model.signatures if not name.startswith("__")]
    usual = "serving_default" if "serving_default" in keys else keys[0]
    key = parameters.get("TF_SIGNATURE_DEF", usual)
    specs = model.signatures[key].structured_input_signature[1]

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        given = {name: array.reshape(()) if specs[name].shape.rank == 0 else array for name, array in inputs.items()}
        outputs = model.signatures[key](**{name: tensorflow.constant(array) for name, array in given.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return predict


def _litert(path: str, config: dict[str, Any]) -> Any:
    try:
        interpreter_class = importlib.import_module("ai_edge_litert.interpreter").Interpreter
    except ModuleNotFoundError:
        interpreter_class = importlib.import_module("tensorflow").lite.Interpreter
    interpreter = interpreter_class(path)
    keys = list(interpreter.get_signature_list())
    if keys:
        usual = "serving_default" if "serving_default" in keys else keys[0]
        chosen = config.get("parameters", {}).get("SIGNATURE", {"string_value": usual})
        runner = interpreter.get_signature_runner(chosen["string_value"])
        shapes = {name: each["shape_signature"] for name, each in runner.get_input_details().items()}
        return lambda inputs: runner(**{name: _scalar(array, shapes[name]) for name, array in inputs.items()})
    places = {each["name"]: each for each in interpreter.get_input_details()}

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        for name, array in inputs.items():
            interpreter.resize_tensor_input(places[name]["index"], _scalar(array, places[name]["shape"]).shape)
        interpreter.allocate_tensors()
        for name, array in inputs.items():
            interpreter.set_tensor(places[name]["index"], _scalar(array, places[name]["shape"]))
        interpreter.invoke()
        return {each["name"]: interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()}

    return predict


def _scalar(array: Any, shape: Any) -> Any:
    return array if len(shape) else array.reshape(())


# --- OpenVINO, MLflow -----------------------------------------------------------------------------------------------


def _openvino(path: str, config: dict[str, Any]) -> Any:
    compiled = importlib.import_module("openvino").Core().compile_model(path, "CPU")
    names = [output["name"] for output in config["output"]]

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        given = {port: inputs[name] for name, port in _by_name(config["input"], compiled.inputs) if name in inputs}
        result = compiled(given)
        return {name: result[port] for name, port in _by_name(config["output"], compiled.outputs) if name in names}

    return predict


def _by_name(configured: list[dict[str, Any]], ports: Any) -> list[Any]:
    """Names and ports; ports without a name stand in the order of the configuration."""
    known = {name: port for port in ports for name in port.get_names()}
    return [(each["name"], known.get(each["name"], ports[place])) for place, each in enumerate(configured)]


def _mlflow(path: str, config: dict[str, Any]) -> Any:
    model = importlib.import_module("mlflow.pyfunc").load_model(path)
    schema = model.metadata.get_input_schema()
    names = [output["name"] for output in config["output"]]

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        if schema is not None and schema.is_tensor_spec():
            result = model.predict(inputs if schema.has_input_names() else next(iter(inputs.values())))
        else:
            table = importlib.import_module("pandas").DataFrame({name: each.ravel() for name, each in inputs.items()})
            result = model.predict(table)
        if hasattr(result, "columns"):
            result = {str(name): result[name] for name in result.columns}
        return result if isinstance(result, dict) else {names[0]: result}

    return predict


# --- Hugging Face ---------------------------------------------------------------------------------------------------


def _transformers(path: str, config: dict[str, Any]) -> Any:
    transformers, torch = importlib.import_module("transformers"), importlib.import_module("torch")
    outputs = {output["name"] for output in config["output"]}
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if "text_output" in outputs:
        model = transformers.AutoModelForCausalLM.from_pretrained(path)
        return lambda inputs: {"text_output": _generated(model, tokenizer, inputs)}
    chosen = {"POOLING", "NORMALIZE", "TASK"} & config.get("parameters", {}).keys()
    if {input_["name"] for input_ in config["input"] if not input_.get("optional")} != {"text"} or chosen:
        raise ValueError(f"no comparison is known for the outputs {', '.join(sorted(outputs))}; leave out --verify")

    def tokens(inputs: dict[str, Any]) -> Any:
        return tokenizer(list(inputs["text"].ravel()), return_tensors="pt", padding=True, truncation=True)

    if outputs == {"embedding"}:
        encoder = transformers.AutoModel.from_pretrained(path).eval()
        return lambda inputs: {"embedding": _mean(encoder, tokens(inputs), torch)}
    if not {"label", "score", "scores"} >= outputs:
        raise ValueError(f"no comparison is known for the outputs {', '.join(sorted(outputs))}; leave out --verify")
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            scores = classifier(**tokens(inputs)).logits.softmax(-1)
        best = scores.argmax(-1)
        labels = [classifier.config.id2label[int(place)] for place in best]
        return {"label": labels, "score": scores.max(-1).values, "scores": scores}

    return predict


def _mean(encoder: Any, tokens: Any, torch: Any) -> Any:
    """The mean over the tokens of each text."""
    with torch.no_grad():
        states = encoder(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
    return (states * mask).sum(1) / mask.sum(1)


def _generated(model: Any, tokenizer: Any, inputs: dict[str, Any]) -> list[str]:
    """The prompt and the likeliest words after it."""
    prompt = str(inputs["text_input"].ravel()[0])
    most = json.loads(str(inputs["sampling_parameters"].ravel()[0]))["max_tokens"]
    tokens = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**tokens, max_new_tokens=most, do_sample=False)[0]
    return [prompt + tokenizer.decode(output[tokens["input_ids"].shape[1] :], skip_special_tokens=True)]


_PREDICTORS = {
    "classes_": _classes,
    "onnx": _onnx,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "treelite": _treelite,
    "sklearn": _sklearn,
    "saved_model": _saved_model,
    "litert": _litert,
    "openvino": _openvino,
    "mlflow": _mlflow,
    "torchscript": _torchscript,
    "torch_export": _torch_export,
    "transformers": _transformers,
}
