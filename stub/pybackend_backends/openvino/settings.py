"""Parameters of an OpenVINO model, and the properties of the library that follow from them."""

from typing import Any, Dict, Mapping

from pybackend_sdk.backend import (
    Ignored,
    boolean,
    choice,
    memory_advice,
    read_parameters,
    require,
    text,
    threads_per_instance,
    whole_number,
)
from pybackend_sdk.error import TritonModelException

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
    """Properties of OpenVINO on a CPU."""
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


def compile_model(config: Mapping[str, Any], core: Any, model: Any, settings: Mapping[str, Any], device: str) -> Any:
    """Prepare a model for computing on ``TARGET_DEVICE``, else on that of the instance's kind, e.g. ``CPU``."""
    ov, device = runtime(), settings.get("TARGET_DEVICE") or device
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
