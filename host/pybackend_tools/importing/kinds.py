"""The kinds of models that can be imported, and the files of one that was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybackend.errors import ServerError


@dataclass(frozen=True)
class Kind:
    """A kind of model."""

    name: str  # short, as the verification's program knows it
    title: str  # with its article, for messages
    backend: str  # the backend that serves it
    # the default name of its file or directory in a version directory; ``""`` if the files keep their names
    filename: str
    is_pickle: bool = False  # reading it runs any code that its writer put into it


ONNX = Kind("onnx", "an ONNX model", "onnxruntime", "model.onnx")
XGBOOST_JSON = Kind("xgboost", "an XGBoost model in JSON", "fil", "xgboost.json")
XGBOOST_UBJ = Kind("xgboost", "an XGBoost model in UBJSON", "fil", "xgboost.ubj")
LIGHTGBM = Kind("lightgbm", "a LightGBM model", "fil", "model.txt")
TREELITE = Kind("treelite", "a treelite checkpoint", "fil", "checkpoint.tl")
SKOPS = Kind("sklearn", "a skops file", "sklearn", "model.skops")
JOBLIB = Kind("sklearn", "a pickle of joblib", "sklearn", "model.joblib", is_pickle=True)
PICKLE = Kind("sklearn", "a pickle", "sklearn", "model.pkl", is_pickle=True)
TORCHSCRIPT = Kind("torchscript", "a TorchScript archive", "pytorch", "model.pt")
TORCH_EXPORT = Kind("torch_export", "an archive of torch.export", "pytorch", "model.pt2")
TORCH_COMPILED = Kind("torch_compiled", "an archive of AOTInductor", "pytorch", "model.pt2")
TRANSFORMERS = Kind("transformers", "a Hugging Face directory", "transformers", "")
SAVED_MODEL = Kind("saved_model", "a TensorFlow SavedModel", "tensorflow", "model.savedmodel")
LITERT = Kind("litert", "a LiteRT model", "litert", "model.tflite")
OPENVINO = Kind("openvino", "an OpenVINO model", "openvino", "model.xml")
MLFLOW = Kind("mlflow", "an MLflow directory", "python", "model.py", is_pickle=True)

ACCEPTED = (
    "ONNX, OpenVINO (.xml and .bin), TorchScript and torch.export archives, LiteRT (.tflite), XGBoost (JSON, UBJSON), LightGBM "
    "(text), treelite checkpoints, skops, pickles of scikit-learn (--trust-pickle), directories of TensorFlow (SavedModel), Hugging "
    "Face and MLflow"
)
"""All kinds, for messages."""


class UnknownFileError(ServerError):
    """A file has no known form; it may still be right for a backend."""


class DamagedFileError(ServerError):
    """A file begins as one of its kind does, and is incomplete or damaged."""


@dataclass(frozen=True)
class FoundModel:
    """A model that was found."""

    kind: Kind
    source: Path  # the path that the user gave
    files: Mapping[str, Path]  # the files or directories to copy, by their path in the version directory
    texts: Mapping[str, str] = field(default_factory=dict)  # files to write, by their path in the version directory
    # configurations to start from, the preferred one first; the model completes them
    configurations: Sequence[Mapping[str, Any]] = ({},)
    requirements: Sequence[str] = ()  # lines of a requirements.txt that the model states itself; empty for none
    # a row by column that the model's author has left as an example; empty for none
    examples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trust(self) -> Mapping[str, str]:
        """The parameters that let a backend read a pickle; the user has agreed."""
        return {"PICKLE": "trusted"} if self.kind.is_pickle and self.kind is not MLFLOW else {}

    @property
    def main(self) -> str:
        """The file or directory that the framework loads, relative to the version directory; ``""`` for the whole of it."""
        return next(iter(self.files)) if len(self.files) == 1 else self.kind.filename
