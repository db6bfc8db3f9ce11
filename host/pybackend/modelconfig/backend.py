"""The backend of a configuration, given or inferred. First step of a load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.author_files.reading import exists_beneath
from pybackend.errors import ModelConfigError
from pybackend.modelconfig.model_directory import scan_versions
from pybackend.modelconfig.schema import ModelConfig

PYTHON = "python"
DEFAULT_MODEL_FILENAME = "model.py"

_BACKEND_OF_PLATFORM = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_BACKEND_OF_FILE = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.pt2": "pytorch",
    DEFAULT_MODEL_FILENAME: PYTHON,
}
"""Backends by the file they leave in a version directory; the first file found decides."""


def inferred_backend(document: Mapping[str, Any], model_directory: Path, *, by_name: bool) -> str:
    """Infer the backend of a configuration that names none, from its platform or its files.

    Args:
        document: complete; its name is the model's.
        model_directory: its lowest version is inspected.
        by_name: infer it from the model's name as well.

    Returns:
        ``""`` if nothing indicates a backend; then ``by_name`` is False, or the platform names one.

    Raises:
        ModelConfigError: nothing indicates a backend, not even the name.
        ModelLoadError: the directory cannot be read.
    """
    platform = document["platform"]
    if platform:
        return _BACKEND_OF_PLATFORM.get(platform, "")
    if document["default_model_filename"] == DEFAULT_MODEL_FILENAME:
        return PYTHON
    if not document["default_model_filename"]:
        first_version = next(iter(scan_versions(model_directory).versions.values()), None)
        if first_version is not None:
            for filename, backend in _BACKEND_OF_FILE.items():
                if exists_beneath(first_version, filename):
                    return backend
    if not by_name:
        return ""
    name = document["name"]
    backend = str(name).partition(".")[2]
    if not backend:
        raise ModelConfigError(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'. For a Python model, put its code "
            f'into {model_directory / "1" / DEFAULT_MODEL_FILENAME} or set backend: "python" in config.pbtxt.'
        )
    return backend


def check_backend(config: ModelConfig) -> str:
    """The backend of a configuration, after checking that platform and backend agree.

    Raises:
        ModelConfigError: they contradict each other, or both are missing.
    """
    name, platform, backend, source = config.name, config.platform, config.backend, config.source
    if not platform and not backend:
        raise ModelConfigError(f"must specify 'platform' or 'backend' for '{name}': set backend: \"python\" ({source})")
    if not backend and platform not in _BACKEND_OF_PLATFORM:
        raise ModelConfigError(
            f"unexpected platform type '{platform}' for {name}: leave 'platform' out and set backend: \"python\" "
            f"({source})"
        )
    if backend and _BACKEND_OF_PLATFORM.get(platform, backend) != backend:
        raise ModelConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}. A Python model has no 'platform' "
            f"({source})"
        )
    return backend or _BACKEND_OF_PLATFORM[platform]
