"""Directories that MLflow has saved: the file of a native flavor where a backend serves it, else the python_function flavor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pybackend.errors import ServerError
from pybackend_tools.importing.kinds import MLFLOW, TRANSFORMERS, DamagedFileError, FoundModel

MLMODEL = "MLmodel"

_DATA_KEYS: Mapping[str, Sequence[str]] = {
    "onnx": ("data",),
    "xgboost": ("data",),
    "lightgbm": ("data",),
    "sklearn": ("pickled_model",),
    "pytorch": ("model_data",),
    "tensorflow": ("saved_model_dir",),
    "transformers": ("model_binary",),
}
"""The keys of a native flavor that name its file or directory, in the order in which flavors are tried."""

PYFUNC = "python_function"
_NAMELESS = "input"
"""The name of the first column if a signature has none."""

_COPY = "mlflow_model"
"""The name of the whole directory in a version directory."""

_MODEL_FILE = Path(__file__).resolve().parents[1] / "templates" / "imported" / "mlflow_model.py"
_BATCH_SIZE = 32768

_TYPES = {
    "boolean": "TYPE_BOOL", "integer": "TYPE_INT32", "long": "TYPE_INT64", "float": "TYPE_FP32", "double": "TYPE_FP64",
    "string": "TYPE_STRING", "datetime": "TYPE_STRING",
    "bool": "TYPE_BOOL", "int8": "TYPE_INT8", "int16": "TYPE_INT16", "int32": "TYPE_INT32", "int64": "TYPE_INT64",
    "uint8": "TYPE_UINT8", "uint16": "TYPE_UINT16", "uint32": "TYPE_UINT32", "uint64": "TYPE_UINT64",
    "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "str": "TYPE_STRING", "object": "TYPE_STRING",
}  # fmt: skip
"""Types of columns and of tensors, as MLflow names them."""

_NATIVE_NEEDS_NO = re.compile(r"mlflow(-skinny)?\b")
_LARGEST_EXAMPLE_BYTES = 1024 * 1024

Detect = Callable[[Path], FoundModel]


def is_mlflow(path: Path) -> bool:
    """Whether a directory is one that MLflow has saved. Blocking."""
    return os.path.isfile(path / MLMODEL)


def read_mlflow(path: Path, detect: Detect, flavor: str = "") -> FoundModel:
    """The model in a directory of MLflow. Blocking.

    ``flavor``: the only one that counts, ``""`` for the first that can be served. Raises ServerError if MLmodel cannot
    be read, a file that it names is missing, or no flavor can be served.
    """
    document = _document(path)
    flavors = document.get("flavors")
    if not isinstance(flavors, dict) or not flavors:
        raise ServerError(f"{path / MLMODEL} names no flavors: save the model again with MLflow")
    columns, tensors = _signature(path, document, "inputs")
    examples = _examples(path, document)
    requirements = _requirements(path)
    for name in _DATA_KEYS:
        if name in flavors and flavor in {"", name}:
            found = _native(path, name, flavors[name], detect)
            if found is not None:
                table = {"input": columns} if columns and found.kind.name == "sklearn" else {}
                matrix = _matrix_of(columns)
                return replace(
                    found,
                    source=path,
                    configurations=[table, matrix] if table else [matrix],
                    requirements=[line for line in requirements if not _NATIVE_NEEDS_NO.match(line)],
                    examples=examples,
                )
    if PYFUNC not in flavors or flavor not in {"", PYFUNC}:
        which = f"the flavor {flavor}" if flavor else "any of them"
        raise ServerError(f"{path / MLMODEL} has the flavors {', '.join(flavors)}, and no backend serves {which}")
    outputs, more_outputs = _signature(path, document, "outputs")
    inputs, outputs = columns or tensors, outputs or more_outputs
    if not inputs or not outputs:
        side = "outputs" if inputs else "inputs"
        raise ServerError(
            f"{path / MLMODEL} has no signature with {side}: save the model with signature=mlflow.models.infer_signature(rows, answers)"
        )
    configuration = {"max_batch_size": _BATCH_SIZE, "dynamic_batching": {}, "input": inputs, "output": outputs}
    return FoundModel(
        MLFLOW,
        path,
        {_COPY: path},
        {MLFLOW.filename: _MODEL_FILE.read_text(encoding="utf-8")},
        [configuration],
        requirements,
        examples,
    )


def _matrix_of(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of a configuration that tells the columns of a model's only input, for requests that name them."""
    names = [str(each["name"]) for each in columns]
    if not names or names[0] == _NAMELESS:
        return {}
    return {"parameters": {"MLFLOW_COLUMNS": {"string_value": json.dumps(names, ensure_ascii=False)}}}


def _document(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load((path / MLMODEL).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        raise ServerError(f"{path / MLMODEL} is not YAML with a mapping: copy it again")
    return document


def _native(path: Path, flavor: str, about: Any, detect: Detect) -> FoundModel | None:
    """The file or directory of a native flavor; None if no backend serves it."""
    named = next((about[key] for key in _DATA_KEYS[flavor] if isinstance(about, dict) and about.get(key)), "")
    if not named:
        return None
    data = path / str(named)
    if not data.resolve().is_relative_to(path.resolve()):
        raise ServerError(
            f"{path / MLMODEL} names {named} for the flavor {flavor}, outside of {path}: save the model again"
        )
    if not os.path.lexists(data):
        raise ServerError(
            f"{path / MLMODEL} names {named} for the flavor {flavor}, and {path} does not hold it: copy it there"
        )
    try:
        found = detect(data)
    except DamagedFileError:
        raise
    except ServerError:
        return None
    if found.kind is TRANSFORMERS:
        tokenizer = path / "components" / "tokenizer"
        names = sorted(os.listdir(tokenizer)) if os.path.isdir(tokenizer) else []
        return replace(found, files={**{name: tokenizer / name for name in names}, **found.files})
    return found


def _signature(path: Path, document: Mapping[str, Any], side: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The columns and the tensors of one side of the signature, as inputs or outputs of a configuration."""
    text = (document.get("signature") or {}).get(side)
    if not text:
        return [], []
    columns, tensors = [], []
    try:
        for number, each in enumerate(json.loads(text)):
            name = str(each.get("name") or (f"{side[:-1]}_{number}" if number else side[:-1]))
            if each["type"] == "tensor":
                spec = each["tensor-spec"]
                dims = list(spec["shape"][1:]) or [1]
                tensors.append({"name": name, "data_type": _TYPES[spec["dtype"]], "dims": dims})
            else:
                optional = {"optional": True} if side == "inputs" and not each.get("required", True) else {}
                columns.append({"name": name, "data_type": _TYPES[each["type"]], "dims": [1], **optional})
    except KeyError as error:
        raise ServerError(
            f"{path / MLMODEL}: the signature has {side} of the type {error}, which no tensor holds"
        ) from None
    except (ValueError, TypeError, AttributeError):
        raise ServerError(
            f"{path / MLMODEL}: the {side} of the signature cannot be read: save the model again"
        ) from None
    return columns, tensors


def _requirements(path: Path) -> list[str]:
    listed = path / "requirements.txt"
    if os.path.isfile(listed):
        lines = [line.strip() for line in listed.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line and not line.startswith("#")]
    environment = path / "conda.yaml"
    if not os.path.isfile(environment):
        return []
    import yaml

    try:
        dependencies = yaml.safe_load(environment.read_text(encoding="utf-8"))["dependencies"]
        return [str(line) for each in dependencies if isinstance(each, dict) for line in each.get("pip", ())]
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
        raise ServerError(f"{environment} cannot be read as an environment of conda: save the model again") from None


def _examples(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """The first row of the example that the model's author has left, by column; empty if there is none."""
    about = document.get("saved_input_example_info")
    name = about.get("artifact_path", "") if isinstance(about, dict) else ""
    file = path / str(name)
    if not name or not os.path.isfile(file) or os.path.getsize(file) > _LARGEST_EXAMPLE_BYTES:
        return {}
    try:
        example = json.loads(file.read_bytes())
        return dict(zip(map(str, example["columns"]), example["data"][0], strict=True))
    except (ValueError, TypeError, KeyError, IndexError):
        return {}  # an example of another form is not needed
