"""Reads a model's file, gives it the batch dimension that the configuration asks for, and tells its tensors."""

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.backend import (
    Ignored,
    Signature,
    TensorInfo,
    boolean,
    choice,
    memory_advice,
    model_path,
    model_tensors,
    read_parameters,
    require,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.backend.signature import VARIABLE, configured_shape
from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_wire.dtypes import BY_NUMPY

BACKEND = EXTRA = "openvino"


def runtime() -> Any:
    """The module ``openvino``."""
    return require("openvino", backend=BACKEND, extra=EXTRA)


def version(ov: Any) -> str:
    """Its version without the number of the build, e.g. ``2026.4.1``."""
    return str(ov.__version__).partition("-")[0]


def reason(error: Exception) -> str:
    """The library's message without its source files, and the way out if the process has no memory left."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from ", "Check '", "While validating "))]
    text = " ".join(" ".join(told or lines).split())
    advice = memory_advice(error)
    return f"{text}. {advice}" if advice else text


_ONE_STREAM = Ignored(
    "an instance is one stream, which computes one batch at a time: instance_group { count: N } makes N streams"
)

PARAMETERS = {
    "INFERENCE_NUM_THREADS": whole_number(at_least=1),
    "COMPILATION_NUM_THREADS": Ignored("models are compiled by one thread on a CPU"),
    "NUM_STREAMS": _ONE_STREAM,
    "PERFORMANCE_HINT": _ONE_STREAM,
    "INFERENCE_PRECISION_HINT": choice("f32", "bf16", "f16"),
    "EXECUTION_MODE_HINT": choice("PERFORMANCE", "ACCURACY"),
    "HINT_BF16": boolean(),
    "ENABLE_CPU_PINNING": boolean(),
    "SKIP_OV_DYNAMIC_BATCHSIZE": boolean(),
    "ENABLE_BATCH_PADDING": boolean(),
    "RESHAPE_IO_LAYERS": boolean(),
    "TARGET_DEVICE": text(),
    "CPU_EXTENSION_PATH": text(),
}
"""Those of the reference, and names of OpenVINO's own properties."""

_VIRTUAL_DEVICES = frozenset({"AUTO", "MULTI", "HETERO", "BATCH"})


def read_settings(config: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters of a model, by name."""
    return read_parameters(config, PARAMETERS)


def _properties(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Dict[str, Any]:
    properties: Dict[str, Any] = {"NUM_STREAMS": 1}
    if settings.get("HINT_BF16"):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    for name in ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"):
        if name in settings:
            properties[name] = settings[name]
    properties["INFERENCE_NUM_THREADS"] = settings.get("INFERENCE_NUM_THREADS") or threads_per_instance(config)
    # By default the library ties its threads to cores. Each instance is a process, and all would choose the same ones.
    properties["ENABLE_CPU_PINNING"] = settings.get("ENABLE_CPU_PINNING", False)
    return properties


def new_core(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """A core of OpenVINO, with the operations of the model's extension."""
    core = runtime().Core()
    extension = settings.get("CPU_EXTENSION_PATH")
    if extension:
        try:
            core.add_extension(extension)
        except Exception as error:  # noqa: BLE001  the library's errors have no common base
            raise TritonModelException(
                f"model '{config['name']}': parameters CPU_EXTENSION_PATH: {extension} cannot be loaded: "
                f"{reason(error)}"
            ) from None
    return core


def compile_model(config: Mapping[str, Any], core: Any, model: Any, settings: Mapping[str, Any]) -> Any:
    """Prepare a model for computing on ``TARGET_DEVICE``, else on the CPU."""
    ov, device = runtime(), settings.get("TARGET_DEVICE") or "CPU"
    _check_device(config, ov, core, device)
    properties = _properties(config, settings) if device == "CPU" else {}
    try:
        return core.compile_model(model, device, properties)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise TritonModelException(
            f"model '{config['name']}': OpenVINO {version(ov)} cannot compile it for {device}: {reason(error)}"
        ) from None


def _check_device(config: Mapping[str, Any], ov: Any, core: Any, device: str) -> None:
    available = list(core.available_devices)
    known = {name.partition(".")[0] for name in available} | _VIRTUAL_DEVICES
    for part in device.replace(":", ",").split(","):
        if part.strip().partition(".")[0].lstrip("-") not in known:
            raise TritonModelException(
                f"model '{config['name']}': OpenVINO {version(ov)} finds no device {part} on this machine, it finds "
                f'{", ".join(available)}: write TARGET_DEVICE "CPU", or leave it out'
            )


FILES = ("model.xml", "model.onnx")

_DATA_TYPES = {f"{dtype.kind}{8 * dtype.itemsize}": row.config_name for dtype, row in BY_NUMPY.items()}
_DATA_TYPES.update(boolean="TYPE_BOOL", string="TYPE_STRING")
"""By names such as ``f32``, ``i64`` and ``u8``."""

_HEADER_BYTES = 4096
_ROOT = re.compile(rb"<net\b(?:[^>]*?\bversion=\"(\d+)\")?")

_OTHER_VERSION = "A newer openvino in the model's environment, or a file written by an older one, mends it"
_ADVICE = {
    "empty weights data": "Put {stem}.bin, which holds its weights, beside it",
    "incorrect weights": "{stem}.bin is truncated, or belongs to another {stem}.xml",
    "error parsing element": "The file is truncated or damaged",
    "doesn't contain the operation": _OTHER_VERSION,
    "unsupported opset": _OTHER_VERSION,
    "no conversion rule": "A newer openvino in the model's environment mends it, or a library with these operations, which "
    "parameters CPU_EXTENSION_PATH names",
}
_UNREADABLE = "unable to read the model"


class ServedModel(NamedTuple):
    """A model as it is served: OpenVINO's, and the place of each output among its outputs, by name.

    A fixed batch that is kept is the only size that the model computes; in the signature it counts as one of any size.
    """

    model: Any
    signature: Signature
    output_places: Dict[str, int]
    fixed_batch: Optional[int]


def find_file(config: Mapping[str, Any]) -> str:
    """The path of a model's file; ONNX files may lie in a directory of the same name, with their external data."""
    path = model_path(config, FILES)
    inner = os.path.join(path, os.path.basename(path))
    return inner if os.path.isfile(inner) else path


def read_model(config: Mapping[str, Any], core: Any, path: str, settings: Mapping[str, Any]) -> ServedModel:
    """Read a model's file."""
    model = _read(config, core, path)
    file, batches = os.path.basename(path), config.get("max_batch_size", 0) > 0
    shapes, keeps_batch = {}, settings.get("SKIP_OV_DYNAMIC_BATCHSIZE")
    if settings.get("RESHAPE_IO_LAYERS"):
        shapes = _configured_shapes(config, model)
    elif batches and not keeps_batch:
        shapes = _batch_shapes(model)
    if shapes:
        _reshape(config, model, shapes, file)
    fixed = _fixed_batch(model) if batches and keeps_batch else None
    if fixed is not None and config["max_batch_size"] > fixed:
        raise TritonModelException(
            f"model '{config['name']}': max_batch_size is {config['max_batch_size']}, and the batch size in {file} is fixed "
            f"to {fixed}: write max_batch_size: {fixed}, or leave SKIP_OV_DYNAMIC_BATCHSIZE out"
        )
    places: Dict[str, int] = {}
    for place, name in enumerate(_names(config, "output", model.outputs)):
        places.setdefault(name, place)  # a tensor may be an output more than once
    return ServedModel(model, _signature(config, model, places, file, fixed), places, fixed)


def _read(config: Mapping[str, Any], core: Any, path: str) -> Any:
    ov, root = runtime(), None
    is_xml = path.endswith(".xml")
    if is_xml:
        try:
            with open(path, "rb") as file:
                root = _ROOT.search(file.read(_HEADER_BYTES))
        except OSError as error:
            raise TritonModelException(f"model '{config['name']}': {path} cannot be read: {error.strerror}") from None
    if is_xml and root is None:
        raise TritonModelException(
            f"model '{config['name']}': {path} is no file of OpenVINO: it has no element <net>. openvino.save_model() writes "
            "such a file and its weights"
        )
    try:
        return core.read_model(path)
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        raise TritonModelException(
            f"model '{config['name']}': OpenVINO {version(ov)} cannot read {path}: {_explained(reason(error), path, root)}"
        ) from None


def _explained(why: str, path: str, root: "Optional[re.Match[bytes]]") -> str:
    """The library's reason, and what to do."""
    if _UNREADABLE in why.lower():
        if root is not None and root[1]:
            return f"it does not know version {int(root[1])} of such files. {_OTHER_VERSION}"
        return "the file is truncated or damaged, or its content does not fit its name"
    stem = os.path.splitext(os.path.basename(path))[0]
    advice = next((text for words, text in _ADVICE.items() if words in why.lower()), "")
    end = "" if why.endswith((".", "!")) else "."
    return f"{why}{end} {advice.format(stem=stem)}".strip()


def _configured_shapes(config: Mapping[str, Any], model: Any) -> Dict[int, List[int]]:
    """The configured shape of every input that the configuration has."""
    inputs = {tensor["name"]: tensor for tensor in model_tensors(config, "input") if tensor.get("dims")}
    complete = {"max_batch_size": 0, **config}
    return {
        index: list(configured_shape(complete, inputs[name]))
        for index, name in enumerate(_names(config, "input", model.inputs))
        if name in inputs
    }


def _batch_shapes(model: Any) -> Dict[int, List[int]]:
    """For each input with a fixed first dimension, its shape with a first dimension of any size."""
    shapes = [_shape(port) for port in model.inputs]
    return {index: [VARIABLE, *shape[1:]] for index, shape in enumerate(shapes) if shape and shape[0] != VARIABLE}


def _reshape(config: Mapping[str, Any], model: Any, shapes: Mapping[int, Sequence[int]], file: str) -> None:
    ov = runtime()
    try:
        model.reshape({index: ov.PartialShape(list(shape)) for index, shape in shapes.items()})
    except Exception as error:  # noqa: BLE001  the library's errors have no common base
        wanted = ", ".join(
            f"'{_name(config, 'input', model.inputs[index])}' {list(shape)}" for index, shape in shapes.items()
        )
        raise TritonModelException(
            f"model '{config['name']}': {file} does not take the shapes that config.pbtxt asks for ({wanted}): "
            f"{reason(error)} Write the shapes of the file, with max_batch_size: 0 if its batch size is fixed"
        ) from None


def _fixed_batch(model: Any) -> Optional[int]:
    """The first dimension of all inputs, None if it is not one size for all."""
    sizes = {(_shape(port) or (VARIABLE,))[0] for port in model.inputs}
    return sizes.pop() if len(sizes) == 1 and VARIABLE not in sizes else None


def _signature(
    config: Mapping[str, Any], model: Any, output_places: Mapping[str, int], file: str, fixed: Optional[int]
) -> Signature:
    """The model's tensors. Outputs that cannot be sent are left out with a warning."""
    inputs, outputs, left_out = [], [], []
    for name, port in zip(_names(config, "input", model.inputs), model.inputs):
        type_name = port.element_type.get_type_name()
        if type_name not in _DATA_TYPES:
            raise TritonModelException(
                f"model '{config['name']}': input '{name}' of {file} is of type {type_name}, which cannot be sent: convert "
                "the model with an input of f32, integers of 8 to 64 bits, boolean or string"
            )
        inputs.append(_tensor_info(name, port, fixed))
    for name, place in output_places.items():
        port = model.outputs[place]
        type_name = port.element_type.get_type_name()
        if type_name in _DATA_TYPES:
            outputs.append(_tensor_info(name, port, fixed))
        else:
            left_out.append(f"'{name}' ({type_name})")
    if left_out and not outputs:
        raise TritonModelException(f"model '{config['name']}': no output of {file} can be sent: {', '.join(left_out)}")
    if left_out:
        Logger.log_warn(
            f"model '{config['name']}': {file} has outputs that cannot be sent and are left out: {', '.join(left_out)}"
        )
    most = [port.partial_shape[0].get_max_length() for port in model.inputs if _shape(port)]
    bounded = [size for size in most if size > 0]
    return Signature(inputs, outputs, min(bounded) if bounded else None)


def _tensor_info(name: str, port: Any, fixed: Optional[int]) -> TensorInfo:
    shape = _shape(port)
    if shape and fixed is not None and shape[0] == fixed:
        shape = (VARIABLE, *shape[1:])
    return TensorInfo(name, _DATA_TYPES[port.element_type.get_type_name()], shape)


def _shape(port: Any) -> Optional[Tuple[int, ...]]:
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return None
    return tuple(VARIABLE if size.is_dynamic else size.get_length() for size in shape)


def _names(config: Mapping[str, Any], kind: str, ports: Sequence[Any]) -> List[str]:
    return [_name(config, kind, port) for port in ports]


def _name(config: Mapping[str, Any], kind: str, port: Any) -> str:
    """One of a port's names: that which the configuration uses, else the library's choice, else that of its node."""
    names = port.get_names()
    known: List[str] = sorted({tensor["name"] for tensor in model_tensors(config, kind)}.intersection(names))
    if known:
        return known[0]
    return str(port.get_any_name() if names else port.node.friendly_name)
