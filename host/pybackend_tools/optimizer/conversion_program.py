"""Converts the files of a model for another runtime.

It is the code of a model that a server runs, with ``probe.py``. The files that it makes are the elements of its answer.
It runs on any CPython from 3.8 on.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import probe


class TritonPythonModel:
    """A conversion as a model: anything in, the names and the contents of files out.

    Its question has the ``step``, the ``kind`` of the file, the original's complete ``config`` and ``samples``
    (requests in JSON).
    """

    def initialize(self, args: dict[str, str]) -> None:
        self._asked = probe.question(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        utils, numpy = importlib.import_module("triton_python_backend_utils"), importlib.import_module("numpy")
        with tempfile.TemporaryDirectory() as directory:
            convert = _STEPS[self._asked["step"], self._asked["kind"]]
            try:
                convert(self._asked["path"], directory, self._asked["config"], self._asked["samples"])
            except ModuleNotFoundError as error:
                raise utils.TritonModelException(f"{error.name} is not installed") from None
            names = sorted(os.listdir(directory))
            contents = numpy.empty(len(names), object)
            for place, name in enumerate(names):
                with open(os.path.join(directory, name), "rb") as file:
                    contents[place] = file.read()
        tensors = [utils.Tensor("names", numpy.array(names, object)), utils.Tensor("files", contents)]
        return [utils.InferenceResponse(tensors) for _ in requests]


def _names(tensors: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in tensors]


# --- To ONNX --------------------------------------------------------------------------------------------------------


def _torchscript_to_onnx(source: str, directory: str, config: dict[str, Any], samples: list[Any]) -> None:
    torch = importlib.import_module("torch")
    module = torch.jit.load(source, map_location="cpu").eval()
    _export_to_onnx(module, directory, config, samples, dynamo=False)


def _program_to_onnx(source: str, directory: str, config: dict[str, Any], samples: list[Any]) -> None:
    program = importlib.import_module("torch").export.load(source)
    _export_to_onnx(program, directory, config, samples, dynamo=True)


def _export_to_onnx(model: Any, directory: str, config: dict[str, Any], samples: list[Any], **options: Any) -> None:
    torch = importlib.import_module("torch")
    given = probe.arrays(samples[0])
    inputs, outputs = _names(config["input"]), _names(config["output"])
    if not options["dynamo"]:
        options["dynamic_axes"] = {
            each["name"]: axes
            for each in [*config["input"], *config["output"]]
            for axes in [_open_axes(each, config)]
            if axes
        }
    path = os.path.join(directory, "model.onnx")
    arguments = tuple(torch.from_numpy(given[name]) for name in inputs)
    torch.onnx.export(model, arguments, path, input_names=inputs, output_names=outputs, external_data=False, **options)


def _open_axes(tensor: dict[str, Any], config: dict[str, Any]) -> dict[int, str]:
    """The dimensions of any size, with the batch's."""
    sizes = [-1] * (config["max_batch_size"] > 0) + tensor["dims"]
    return {axis: f"{tensor['name']}_{axis}" if axis else "batch" for axis, size in enumerate(sizes) if size < 0}


def _estimator_to_onnx(source: str, directory: str, config: dict[str, Any], _samples: list[Any]) -> None:
    skl2onnx, types = importlib.import_module("skl2onnx"), importlib.import_module("skl2onnx.common.data_types")
    kinds = {
        "TYPE_FP32": types.FloatTensorType,
        "TYPE_FP64": types.DoubleTensorType,
        "TYPE_INT32": types.Int32TensorType,
        "TYPE_INT64": types.Int64TensorType,
        "TYPE_STRING": types.StringTensorType,
    }
    initial = [(each["name"], kinds[each["data_type"]]([None, *each["dims"]])) for each in config["input"]]
    estimator = probe.estimator(source)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
    model = skl2onnx.convert_sklearn(estimator, initial_types=initial, options=options)
    _write_as_configured(model, directory, config)


def _xgboost_to_onnx(source: str, directory: str, config: dict[str, Any], _samples: list[Any]) -> None:
    booster = importlib.import_module("xgboost").Booster(model_file=source)
    booster.feature_names = None  # the converter wants names such as f0
    _forest_to_onnx("convert_xgboost", booster, directory, config)


def _lightgbm_to_onnx(source: str, directory: str, config: dict[str, Any], _samples: list[Any]) -> None:
    booster = importlib.import_module("lightgbm").Booster(model_file=source)
    _forest_to_onnx("convert_lightgbm", booster, directory, config, zipmap=False)


def _forest_to_onnx(converter: str, booster: Any, directory: str, config: dict[str, Any], **options: Any) -> None:
    tools, types = (
        importlib.import_module("onnxmltools"),
        importlib.import_module("onnxmltools.convert.common.data_types"),
    )
    initial = [("input", types.FloatTensorType([None, *config["input"][0]["dims"]]))]
    _write_as_configured(getattr(tools, converter)(booster, initial_types=initial, **options), directory, config)


def _write_as_configured(model: Any, directory: str, config: dict[str, Any]) -> None:
    """Write a network whose tensors get the names, types and shapes of the configuration, by further nodes at its ends.

    Outputs are taken from the end: the label of a classifier, which comes first, may be unwanted. Of two probabilities,
    one that is wanted is that of the second class.
    """
    onnx = importlib.import_module("onnx")
    make, graph = onnx.helper, model.graph
    made, wanted = list(graph.output)[-len(config["output"]) :], config["output"]
    inputs, outputs, before, after = [], [], [], []
    for value, each in zip(graph.input, config["input"]):  # noqa: B905  CPython 3.8 has no strict zip
        inputs.append(make.make_tensor_value_info(each["name"], _code(each), [None, *each["dims"]]))
        if value.name != each["name"]:
            before.append(make.make_node("Identity", [each["name"]], [value.name]))
    taken = {each["name"] for each in wanted}
    for value, each in zip(made, wanted):  # noqa: B905
        name, dims = value.name, each["dims"]
        if name in taken:  # its name is wanted for the end
            name = f"{name}_inside"
            for node in graph.node:
                node.output[:] = [name if given == value.name else given for given in node.output]
                node.input[:] = [name if given == value.name else given for given in node.input]
        sizes = [size.dim_value for size in value.type.tensor_type.shape.dim]
        steps = []
        if dims == [1] and sizes[1:] == [2]:
            graph.initializer.append(make.make_tensor(f"{name}_second", onnx.TensorProto.INT64, [1], [1]))
            steps.append(("Gather", [f"{name}_second"], {"axis": 1}))
        graph.initializer.append(
            make.make_tensor(f"{name}_shape", onnx.TensorProto.INT64, [1 + len(dims)], [-1, *dims])
        )
        steps.append(("Reshape", [f"{name}_shape"], {}))
        if value.type.tensor_type.elem_type != _code(each):
            steps.append(("Cast", [], {"to": _code(each)}))
        for number, (operator, more, attributes) in enumerate(steps, 1):
            result = each["name"] if number == len(steps) else f"{name}_{number}"
            after.append(make.make_node(operator, [name, *more], [result], **attributes))
            name = result
        outputs.append(make.make_tensor_value_info(each["name"], _code(each), [None, *dims]))
    nodes = [*before, *graph.node, *after]
    for field, values in (("node", nodes), ("input", inputs), ("output", outputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)
    onnx.save(model, os.path.join(directory, "model.onnx"))


def _code(tensor: dict[str, Any]) -> int:
    """ONNX's number of a type of config.pbtxt."""
    names = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}
    name = tensor["data_type"][len("TYPE_") :]
    return int(getattr(importlib.import_module("onnx").TensorProto, names.get(name, name)))


# --- To OpenVINO and others -----------------------------------------------------------------------------------------


def _torchscript_to_openvino(source: str, directory: str, config: dict[str, Any], samples: list[Any]) -> None:
    module = importlib.import_module("torch").jit.load(source, map_location="cpu").eval()
    _torch_to_openvino(module, directory, config, samples)


def _program_to_openvino(source: str, directory: str, config: dict[str, Any], samples: list[Any]) -> None:
    _torch_to_openvino(importlib.import_module("torch").export.load(source), directory, config, samples)


def _torch_to_openvino(model: Any, directory: str, config: dict[str, Any], samples: list[Any]) -> None:
    torch, given = importlib.import_module("torch"), probe.arrays(samples[0])
    example = tuple(torch.from_numpy(given[name]) for name in _names(config["input"]))
    _save_openvino(importlib.import_module("openvino").convert_model(model, example_input=example), directory, config)


def _saved_model_to_openvino(source: str, directory: str, config: dict[str, Any], _samples: list[Any]) -> None:
    model = importlib.import_module("openvino").convert_model(source)
    known = {name: port for port in model.inputs for name in port.get_names()}
    if not set(_names(config["input"])) <= set(known):
        raise ValueError("its inputs have other names in OpenVINO")
    _save_openvino(model, directory, {**config, "input": []})


def _save_openvino(model: Any, directory: str, config: dict[str, Any]) -> None:
    for ports, tensors in ((model.inputs, config["input"]), (model.outputs, config["output"])):
        for port, each in zip(ports, tensors):  # noqa: B905
            port.get_tensor().set_names({each["name"]})
    path = os.path.join(directory, "model.xml")
    importlib.import_module("openvino").save_model(model, path, compress_to_fp16=False)


def _saved_model_to_litert(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    _write(directory, "model.tflite", _litert_converter(source).convert())


def _saved_model_to_litert_int8(source: str, directory: str, _config: dict[str, Any], samples: list[Any]) -> None:
    converter = _litert_converter(source)
    converter.optimizations = [importlib.import_module("tensorflow").lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (probe.arrays(sample) for sample in samples)
    _write(directory, "model.tflite", converter.convert())


def _litert_converter(source: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return importlib.import_module("tensorflow").lite.TFLiteConverter.from_saved_model(source)


def _write(directory: str, name: str, contents: bytes) -> None:
    with open(os.path.join(directory, name), "wb") as file:
        file.write(contents)


def _forest_to_treelite(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    treelite = importlib.import_module("treelite")
    booster = importlib.import_module("xgboost").Booster(model_file=source)
    treelite.frontend.from_xgboost(booster).serialize(os.path.join(directory, "checkpoint.tl"))


def _lightgbm_to_treelite(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    model = importlib.import_module("treelite").frontend.load_lightgbm_model(source)
    model.serialize(os.path.join(directory, "checkpoint.tl"))


def _freeze(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    torch = importlib.import_module("torch")
    torch.jit.freeze(torch.jit.load(source, map_location="cpu").eval()).save(os.path.join(directory, "model.pt"))


def _compile(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    program = importlib.import_module("torch").export.load(source)
    inductor = importlib.import_module("torch._inductor")
    inductor.aoti_compile_and_package(program, package_path=os.path.join(directory, "model.pt2"))


# --- To lower precision ---------------------------------------------------------------------------------------------


def _to_int8(source: str, directory: str, _config: dict[str, Any], samples: list[Any]) -> None:
    quantization = importlib.import_module("onnxruntime.quantization")
    target = os.path.join(directory, "model.onnx")
    quantization.quantize_static(source, target, _Calibration(samples), per_channel=True)


def _to_int8_weights(source: str, directory: str, _config: dict[str, Any], _samples: list[Any]) -> None:
    quantization = importlib.import_module("onnxruntime.quantization")
    quantization.quantize_dynamic(source, os.path.join(directory, "model.onnx"))


class _Calibration:
    """Gives inputs one after the other, as ONNX Runtime's quantization takes them."""

    def __init__(self, samples: list[Any]) -> None:
        self._left: Iterator[Any] = iter([probe.arrays(sample) for sample in samples])

    def get_next(self) -> Any:
        return next(self._left, None)


def _to_openvino_int8(source: str, directory: str, _config: dict[str, Any], samples: list[Any]) -> None:
    openvino, nncf = importlib.import_module("openvino"), importlib.import_module("nncf")
    quantized = nncf.quantize(
        openvino.Core().read_model(source), nncf.Dataset([probe.arrays(sample) for sample in samples])
    )
    openvino.save_model(quantized, os.path.join(directory, "model.xml"), compress_to_fp16=False)


_STEPS: dict[Any, Callable[..., None]] = {
    ("onnx", "torchscript"): _torchscript_to_onnx,
    ("onnx", "torch_export"): _program_to_onnx,
    ("onnx", "sklearn"): _estimator_to_onnx,
    ("onnx", "xgboost"): _xgboost_to_onnx,
    ("onnx", "lightgbm"): _lightgbm_to_onnx,
    ("openvino", "torchscript"): _torchscript_to_openvino,
    ("openvino", "torch_export"): _program_to_openvino,
    ("openvino", "saved_model"): _saved_model_to_openvino,
    ("litert", "saved_model"): _saved_model_to_litert,
    ("litert-int8", "saved_model"): _saved_model_to_litert_int8,
    ("treelite", "xgboost"): _forest_to_treelite,
    ("treelite", "lightgbm"): _lightgbm_to_treelite,
    ("frozen", "torchscript"): _freeze,
    ("compiled", "torch_export"): _compile,
    ("int8", "onnx"): _to_int8,
    ("int8-weights", "onnx"): _to_int8_weights,
    ("openvino-int8", "onnx"): _to_openvino_int8,
    ("openvino-int8", "openvino"): _to_openvino_int8,
}
"""By the name of the step and the kind of the file."""
