"""The backends that this server knows by name: one row for each, and nothing about them anywhere else in the host.

A row serves five questions: which backend an old ``platform`` means, which backend a file in a version directory
belongs to, whether its framework is installed, whether it uses GPUs, and what to use instead of a backend that cannot
be served.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pybackend.author_files import exists_beneath, read_beneath

PYTHON = "python"
DEFAULT_MODEL_FILENAME = "model.py"

_HUGGING_FACE_CONFIG = "config.json"
_HUGGING_FACE_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
_MOST_CONFIG_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class KnownBackend:
    """One backend."""

    name: str  # as in ``backend:``
    files: tuple[str, ...] = ()  # names in a version directory, of files or directories, that belong to this backend
    # values of ``platform`` in configurations that were written before there was ``backend``
    platforms: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()  # modules of the framework, one of which suffices; empty if it needs none
    extra: str = ""  # optional dependency of pybackend that installs them, ``""`` for none
    instead: str = ""  # for a backend that this server cannot run: a sentence with the way out
    on_gpu: bool = True  # whether its instances can compute on a GPU of NVIDIA's
    is_hugging_face: bool = False  # whether directories as the Hugging Face libraries save them belong to this backend


KNOWN_BACKENDS = (
    KnownBackend(
        "tensorflow",
        files=("model.savedmodel", "model.graphdef"),
        platforms=("tensorflow_savedmodel", "tensorflow_graphdef"),
        modules=("tensorflow",),
        extra="tensorflow",
    ),
    KnownBackend(
        "tensorrt",
        files=("model.plan",),
        platforms=("tensorrt_plan",),
        instead='A TensorRT plan runs in native code on the GPU that it was built for: put the ONNX file that it was built from into model.onnx, with backend: "onnxruntime".',
    ),
    KnownBackend(
        "onnxruntime",
        files=("model.onnx",),
        platforms=("onnxruntime_onnx",),
        modules=("onnxruntime",),
        extra="onnx",
    ),
    KnownBackend("openvino", files=("model.xml",), modules=("openvino",), extra="openvino", on_gpu=False),
    KnownBackend(
        "pytorch",
        files=("model.pt", "model.pt2"),
        platforms=("pytorch_libtorch", "torch_aoti"),
        modules=("torch",),
        extra="torch",
    ),
    KnownBackend(PYTHON, files=(DEFAULT_MODEL_FILENAME,)),
    # Below: files that Python models may have beside their model.py, too. The reference does not look for them.
    KnownBackend(
        "fil",
        files=("xgboost.json", "xgboost.ubj", "xgboost.model", "model.txt", "checkpoint.tl"),
        modules=("xgboost", "lightgbm", "treelite"),
        extra="forests",
        on_gpu=False,
    ),
    KnownBackend(
        "sklearn",
        files=("model.skops", "model.joblib", "model.pkl"),
        modules=("sklearn",),
        extra="sklearn",
        on_gpu=False,
    ),
    KnownBackend(
        "litert",
        files=("model.tflite",),
        modules=("ai_edge_litert", "tensorflow"),
        extra="litert",
        on_gpu=False,
    ),
    KnownBackend("transformers", modules=("transformers",), extra="transformers", is_hugging_face=True),
    KnownBackend("vllm", modules=("vllm",), extra="vllm"),
    KnownBackend(
        "dali",
        instead='DALI pipelines run in native code on a GPU: a model.py with Pillow or OpenCV and backend: "python" decodes images on the CPU.',
    ),
)
"""In the order in which files decide: the first row with a file in the version directory wins."""

_BY_NAME = {row.name: row for row in KNOWN_BACKENDS}

BACKEND_OF_PLATFORM: Mapping[str, str] = {platform: row.name for row in KNOWN_BACKENDS for platform in row.platforms}


def known_backend(name: str) -> KnownBackend:
    """The row of a backend; an empty row for one that this server does not know."""
    return _BY_NAME.get(name) or KnownBackend(name)


_TELLING_SUFFIXES = {
    suffix: name
    for row in reversed(KNOWN_BACKENDS)
    for name in reversed(row.files)
    if (suffix := name[name.rindex(".") :]) not in {".json", ".model", ".txt"}
}
"""The usual name of files that end so. The other endings occur everywhere."""


def usual_filename(filename: str) -> str:
    """The name under which a backend looks for such a file, ``""`` if the ending tells nothing."""
    return _TELLING_SUFFIXES.get(Path(filename).suffix, "")


def backend_of_filename(filename: str) -> str:
    """The backend that a ``default_model_filename`` belongs to, ``""`` if it tells nothing."""
    names = {filename, usual_filename(filename)}
    return next((row.name for row in KNOWN_BACKENDS if names.intersection(row.files)), "")


def backend_of_files(version_directory: Path) -> str:
    """The backend that the files of a version belong to, ``""`` if they tell nothing. Blocking."""
    for row in KNOWN_BACKENDS:
        if any(exists_beneath(version_directory, name) for name in row.files):
            return row.name
        if row.is_hugging_face and _is_hugging_face(version_directory):
            return row.name
    return ""


def _is_hugging_face(directory: Path) -> bool:
    """Whether a directory is one that Hugging Face's libraries have saved: weights beside a description of the model."""
    if not any(exists_beneath(directory, name) for name in _HUGGING_FACE_WEIGHTS):
        return False
    try:
        description = json.loads(read_beneath(directory, _HUGGING_FACE_CONFIG, _MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(description, dict) and ("architectures" in description or "model_type" in description)
