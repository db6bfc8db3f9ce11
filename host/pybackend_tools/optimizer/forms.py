"""The forms of a model that are tried: a runtime, what is converted for it, and its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pybackend.errors import ServerError
from pybackend_tools.analyzer.candidates import THREADS
from pybackend_tools.importing.kinds import (
    LIGHTGBM,
    LITERT,
    ONNX,
    OPENVINO,
    SAVED_MODEL,
    TORCH_EXPORT,
    TORCHSCRIPT,
    XGBOOST_JSON,
    FoundModel,
)

_PYTORCH, _TENSORFLOW, _FOREST, _ESTIMATOR = TORCHSCRIPT.backend, SAVED_MODEL.backend, LIGHTGBM.backend, "sklearn"

LEFT_OUT = {
    "TensorRT, and ONNX Runtime and PyTorch on CUDA": "needs a GPU; this command measures on the processor alone"
}
"""Forms that are not tried, and why."""

UNCALIBRATED = {"int8 and bf16": "needs --calibration=FILE with typical inputs"}


@dataclass(frozen=True)
class Form:
    """One form of a model."""

    name: str  # for --forms
    title: str
    backend: str
    # conversions one after the other, by the names in the program that does them; empty for the original's files
    steps: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of its configuration
    is_exact: bool = True  # computes in the precision of the original
    has_own_tensors: bool = False  # its backend names the tensors, so they may have other names than the original's


def forms_of(found: FoundModel, cores: int, *, calibrates: bool) -> list[Form]:
    """The forms of a model, the one that `pybackend import` would make first.

    Raises ServerError if none other is known.
    """
    kind = found.kind
    if kind.name not in _FORMS:
        raise ServerError(
            f"{found.source} is {kind.title}, of which no other form is known: `pybackend optimize` takes ONNX, TorchScript, "
            "torch.export, SavedModel, scikit-learn, XGBoost and LightGBM; `pybackend import` takes this one as it is"
        )
    forms = [form for form in _FORMS[kind.name]() if calibrates or form.is_exact]
    return [form for form in forms if cores > 1 or not form.name.endswith(_ONE_THREAD)]


_ONE_THREAD = "-1-thread"


def _parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in values.items()}}


def _alone(form: Form) -> Form:
    """The form with one thread."""
    threads = _parameters(**{THREADS[form.backend][0]: "1"})
    return Form(f"{form.name}{_ONE_THREAD}", f"{form.title}, 1 thread", form.backend, form.steps, threads)


def _onnxruntime(*steps: str) -> Iterator[Form]:
    usual = Form("onnxruntime", "ONNX Runtime", ONNX.backend, steps)
    yield usual
    yield _alone(usual)
    spinning = _parameters(**{"session.intra_op.allow_spinning": "1"})
    yield Form("onnxruntime-spinning", "ONNX Runtime, threads that spin", ONNX.backend, steps, spinning)
    for name, level in (("extended", 1), ("basic", -1), ("no", 2)):
        settings = {"optimization": {"graph": {"level": level}}}
        yield Form(f"onnxruntime-{name}", f"ONNX Runtime, {name} optimisations", ONNX.backend, steps, settings)


def _openvino(*steps: str) -> Iterator[Form]:
    # Of itself OpenVINO computes in bf16 where the processor can.
    usual = Form("openvino", "OpenVINO", OPENVINO.backend, steps, _parameters(INFERENCE_PRECISION_HINT="f32"))
    yield usual
    alone = _parameters(INFERENCE_PRECISION_HINT="f32", INFERENCE_NUM_THREADS="1")
    yield Form(f"openvino{_ONE_THREAD}", "OpenVINO, 1 thread", OPENVINO.backend, steps, alone)
    hint = _parameters(INFERENCE_PRECISION_HINT="bf16")
    yield Form("openvino-bf16", "OpenVINO, bf16", OPENVINO.backend, steps, hint, is_exact=False)


def _int8(*steps: str) -> Iterator[Form]:
    """Networks in ONNX after these steps, in int8."""
    for name, title, backend in (
        ("int8", "ONNX Runtime, int8", ONNX.backend),
        ("int8-weights", "ONNX Runtime, int8 for weights", ONNX.backend),
        ("openvino-int8", "OpenVINO, int8", OPENVINO.backend),
    ):
        yield Form(name, title, backend, (*steps, name), is_exact=False)


def _of_onnx() -> Iterator[Form]:
    yield from (*_onnxruntime(), *_openvino(), *_int8())


def _of_torchscript() -> Iterator[Form]:
    usual = Form("pytorch", "PyTorch", _PYTORCH)
    yield from (usual, _alone(usual), Form("pytorch-frozen", "PyTorch, frozen", _PYTORCH, ("frozen",)))
    yield from (*_onnxruntime("onnx"), *_openvino("openvino"), *_int8("onnx"))


def _of_torch_export() -> Iterator[Form]:
    usual = Form("pytorch", "PyTorch", _PYTORCH)
    yield from (usual, _alone(usual))
    yield Form("torch-compile", "torch.compile", _PYTORCH, (), _parameters(TORCH_COMPILE="true"))
    yield Form("aotinductor", "AOTInductor", _PYTORCH, ("compiled",))
    yield from (*_onnxruntime("onnx"), *_openvino("openvino"), *_int8("onnx"))


def _of_saved_model() -> Iterator[Form]:
    usual = Form("tensorflow", "TensorFlow", _TENSORFLOW)
    yield from (usual, _alone(usual), *_openvino("openvino"))
    yield Form("openvino-int8", "OpenVINO, int8", OPENVINO.backend, ("openvino", "openvino-int8"), is_exact=False)
    yield Form("litert", "LiteRT", LITERT.backend, ("litert",))
    yield Form("litert-int8", "LiteRT, int8", LITERT.backend, ("litert-int8",), is_exact=False)


def _of_estimator() -> Iterator[Form]:
    yield Form("scikit-learn", "scikit-learn", _ESTIMATOR)
    yield Form("treelite", "treelite", _FOREST, has_own_tensors=True)
    yield from list(_onnxruntime("onnx"))[:2]


def _of_forest() -> Iterator[Form]:
    yield Form("forest", "its own library", _FOREST)
    yield Form("treelite", "treelite", _FOREST, ("treelite",))
    yield from list(_onnxruntime("onnx"))[:2]


_FORMS = {
    ONNX.name: _of_onnx,
    TORCHSCRIPT.name: _of_torchscript,
    TORCH_EXPORT.name: _of_torch_export,
    SAVED_MODEL.name: _of_saved_model,
    _ESTIMATOR: _of_estimator,
    XGBOOST_JSON.name: _of_forest,
    LIGHTGBM.name: _of_forest,
}
"""By the name of the original's kind."""
