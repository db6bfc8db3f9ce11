"""Finds out by the content what a file or directory is. The suffix decides nothing; it only appears in messages."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybackend.errors import ServerError
from pybackend.modelconfig.known_backends import backend_of_files
from pybackend.modelconfig.schema import ModelConfig
from pybackend_tools.importing.kinds import (
    ACCEPTED,
    JOBLIB,
    LIGHTGBM,
    LITERT,
    ONNX,
    OPENVINO,
    PICKLE,
    SAVED_MODEL,
    SKOPS,
    TORCH_COMPILED,
    TORCH_EXPORT,
    TORCHSCRIPT,
    TRANSFORMERS,
    TREELITE,
    XGBOOST_JSON,
    XGBOOST_UBJ,
    DamagedFileError,
    FoundModel,
    Kind,
    UnknownFileError,
)
from pybackend_tools.importing.mlflow_directory import is_mlflow, read_mlflow
from pybackend_tools.importing.onnx_file import external_files, is_onnx

_START_BYTES = 4096
_LARGEST_JSON_BYTES = 512 * 1024 * 1024
_MOST_NAMED = 8

_REFUSED: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89HDF", 0, "an HDF5 file, as Keras writes them: save the model as a SavedModel or as ONNX"),
    (b"GGUF", 0, "a GGUF file: the Hugging Face directory that it was made from can be imported"),
    (b"ptrt", 0, "a TensorRT plan: the ONNX file that it was built from can be imported"),
    (b"ftrt", 0, "a TensorRT plan: the ONNX file that it was built from can be imported"),
    (b"\x93NUMPY", 0, "an array of NumPy"),
    (b"binf", 0, "an XGBoost model in the old binary format: save it again with save_model('model.ubj')"),
)
"""Beginnings of files of other kinds: the bytes, their place, and a clause about such a file."""

_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_COMPRESSED = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_UBJSON_KEY = re.compile(rb"\{[iUIlL]\x00*.(?:learner|version)", re.DOTALL)
_LEARNER = re.compile(rb'\s*\{\s*"(?:learner|version)"\s*:')
_TREELITE_MAJORS = range(3, 7)
_SAFETENSORS = re.compile(rb".{7}\x00\{\"", re.DOTALL)
_OPENVINO = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?<net\s[^>]*version=\"1[01]\"")
_END_BYTES = 64
_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.cpb", "saved_model.pbtxt")
_LITERT_MARK, _LITERT_PLACE = b"TFL3", 4
_LIGHTGBM_START, _LIGHTGBM_END = b"tree\n", b"end of trees"


def detect(path: Path, *, flavor: str = "") -> FoundModel:
    """Find out what a file or directory is. Blocking.

    ``flavor``: the only one that counts of an MLflow directory; ``""`` for the first that a backend serves, else
    python_function. Raises ServerError if it does not exist, cannot be read, is damaged, or is of no kind, or of
    several, that can be imported.
    """
    try:
        if os.path.isdir(path):
            return read_mlflow(path, detect, flavor) if is_mlflow(path) else _directory(path)
        if not os.path.isfile(path):
            state = "is not a regular file" if os.path.lexists(path) else "does not exist"
            raise ServerError(f"{path} {state}: name the file or the directory of a model")
        return _file(path)
    except OSError as error:
        raise ServerError(f"cannot read {error.filename or path}: {error.strerror or error}") from None


def bare_model(path: Path) -> FoundModel | None:
    """The model in a file, or in a directory that holds no models of a repository.

    None for everything unknown. Blocking.
    """
    try:
        return detect(path)
    except ServerError:
        return None


def title_of(path: Path) -> str | None:
    """The words for a framework's model in a file or directory; None for everything unknown. Blocking."""
    found = bare_model(path)
    return None if found is None else found.kind.title


# --- Directories ----------------------------------------------------------------------------------------------------


def _directory(path: Path) -> FoundModel:
    if backend_of_files(path) == TRANSFORMERS.backend:
        return FoundModel(TRANSFORMERS, path, {name: path / name for name in _names(path)})
    if any(os.path.isfile(path / name) for name in _SAVED_MODEL_FILES):
        return FoundModel(SAVED_MODEL, path, {SAVED_MODEL.filename: path})
    models = []
    for name in _names(path):
        if os.path.isfile(path / name):
            try:
                models.append(_file(path / name))
            except DamagedFileError:
                raise
            except ServerError:
                continue  # beside the model there may be anything
    if len(models) == 1:
        return models[0]
    listed = ", ".join(_names(path)[:_MOST_NAMED]) or "nothing"
    if models:
        titles = ", ".join(f"{each.source.name} ({each.kind.title})" for each in models)
        raise ServerError(f"{path} holds {len(models)} models, {titles}: name one of the files")
    raise ServerError(f"{path} is a directory of no known kind; it holds {listed}. Accepted are {ACCEPTED}")


def _names(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if not name.startswith("."))


# --- Files ----------------------------------------------------------------------------------------------------------


def _file(path: Path) -> FoundModel:
    kind = _kind(path)
    if kind is ONNX:
        return FoundModel(kind, path, _onnx_files(path))
    if kind is OPENVINO:
        return FoundModel(kind, path, _openvino_files(path))
    return FoundModel(kind, path, {kind.filename: path})


def _onnx_files(path: Path) -> Mapping[str, Path]:
    """The file alone, or in a directory of the same name with the files of its external data."""
    external = external_files(path)
    if not external:
        return {ONNX.filename: path}
    for name in external:
        if os.path.isabs(name) or ".." in Path(name).parts:
            raise ServerError(
                f"{path} keeps tensors in '{name}', outside its directory: save it again with a plain file name"
            )
        if not os.path.isfile(path.parent / name):
            raise ServerError(f"{path} keeps tensors in '{name}', which is not in {path.parent}: copy it there")
    inner = {f"{ONNX.filename}/{name}": path.parent / name for name in external}
    return {f"{ONNX.filename}/{ONNX.filename}": path, **inner}


def _openvino_files(path: Path) -> Mapping[str, Path]:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _END_BYTES))
        if not file.read().rstrip().endswith(b"</net>"):
            raise DamagedFileError(f"{path} is a truncated OpenVINO model: it does not end with </net>. Copy it again")
    weights = path.with_suffix(".bin")
    if not os.path.isfile(weights):
        raise ServerError(
            f"{path} is an OpenVINO model, and its weights, {weights.name}, are not in {path.parent}: copy them there"
        )
    return {OPENVINO.filename: path, "model.bin": weights}


def _kind(path: Path) -> Kind:
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    if not start:
        raise ServerError(f"{path} is empty: copy it again")
    for magic, place, clause in _REFUSED:
        if start[place:].startswith(magic):
            raise _refused(path, clause)
    if start.startswith(b"PK\x03\x04"):
        return _kind_of_zip(path)
    if start[_LITERT_PLACE:].startswith(_LITERT_MARK):
        return LITERT
    if path.name in _SAVED_MODEL_FILES:
        raise _refused(path, f"a part of a TensorFlow SavedModel: name its directory, {path.parent}")
    for recognise in (_kind_of_json, _kind_of_text, _kind_of_pickle):
        kind = recognise(path, start)
        if kind is not None:
            return kind
    if _is_treelite(start):
        return TREELITE
    if is_onnx(path):
        return ONNX
    if _SAFETENSORS.match(start):
        raise _refused(
            path, "a file of safetensors, which has weights only: name its Hugging Face directory, with config.json"
        )
    raise _unknown(path, "file", f"; it begins with {start[:8].hex(' ')}")


def _refused(path: Path, clause: str) -> ServerError:
    return ServerError(f"{path} is {clause}. Accepted are {ACCEPTED}")


def _unknown(path: Path, what: str, contents: str) -> UnknownFileError:
    return UnknownFileError(f"{path} is a {what} of an unknown kind{contents}. Accepted are {ACCEPTED}")


def _kind_of_zip(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        raise DamagedFileError(f"{path} is a truncated or damaged archive: copy it again") from None
    within = {name.partition("/")[2] for name in names}
    if any(name.startswith("data/aotinductor/") for name in within):
        return TORCH_COMPILED
    if any(name.startswith("models/") for name in within) or {"serialized_exported_program.json"} & {*names, *within}:
        return TORCH_EXPORT
    if "constants.pkl" in within:
        return TORCHSCRIPT
    if "data.pkl" in within:
        raise _refused(
            path,
            "a pickle of torch.save, which needs the code of its class: save the model with torch.export.save or torch.jit.save",
        )
    if "schema.json" in names:
        return SKOPS
    if "config.json" in names and "metadata.json" in names:
        raise _refused(path, "a Keras archive: save the model as a SavedModel or as ONNX")
    raise _unknown(path, "zip archive", f"; it holds {', '.join(names[:_MOST_NAMED]) or 'nothing'}")


def _kind_of_json(path: Path, start: bytes) -> Kind | None:
    if _UBJSON_KEY.match(start):
        return XGBOOST_UBJ
    if not start.lstrip().startswith(b"{"):
        return None
    document = _parsed_json(path)
    if isinstance(document, dict) and {"learner", "version"} <= document.keys():
        return XGBOOST_JSON
    keys = ", ".join(list(document)[:_MOST_NAMED]) if isinstance(document, dict) else "no object"
    raise _unknown(path, "JSON file", f", with the keys {keys}")


def _parsed_json(path: Path) -> Any:
    if os.path.getsize(path) > _LARGEST_JSON_BYTES:
        raise ServerError(
            f"{path} has more than {_LARGEST_JSON_BYTES >> 20} MB of JSON: save the model in UBJSON (model.ubj)"
        )
    with open(path, "rb") as file:
        data = file.read()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        what = "an XGBoost model in JSON" if _LEARNER.match(data) else "a JSON file"
        raise DamagedFileError(f"{path} is {what} that is truncated or damaged ({error}): copy it again") from None


def _kind_of_text(path: Path, start: bytes) -> Kind | None:
    if _OPENVINO.match(start):
        return OPENVINO
    if not start.startswith(_LIGHTGBM_START):
        return None
    with open(path, "rb") as file:
        whole = _LIGHTGBM_END in file.read()
    if not whole:
        raise DamagedFileError(
            f"{path} is a truncated LightGBM model: it lacks the line '{_LIGHTGBM_END.decode()}'. Copy it again"
        )
    return LIGHTGBM


def _kind_of_pickle(path: Path, start: bytes) -> Kind | None:
    if start.startswith(_LEGACY_TORCH):
        raise _refused(path, "an old pickle of torch.save: save the model with torch.export.save or torch.jit.save")
    if _PICKLE.match(start):
        with open(path, "rb") as file:
            return JOBLIB if b"joblib" in file.read() else PICKLE
    if start.startswith(_COMPRESSED):
        try:
            inner = zlib.decompressobj().decompress(start, 2)
        except zlib.error:
            return None
        return JOBLIB if _PICKLE.match(inner) else None
    return None


def _is_treelite(start: bytes) -> bool:
    """A checkpoint begins with the three numbers of treelite's version, and two bytes for types."""
    if len(start) < struct.calcsize("<3i2B"):
        return False
    major, minor, patch, threshold, leaf = struct.unpack_from("<3i2B", start)
    return major in _TREELITE_MAJORS and 0 <= minor < 100 and 0 <= patch < 100 and {threshold, leaf} <= {1, 2, 3}


_TRUSTED = "trusted"
_UNREAD_BACKENDS = {"tensorflow", "transformers", "vllm"}
"""Only the framework understands their files."""


def refusal_of(path: Path, config: ModelConfig) -> str:
    """Why a backend of this server refuses a file or directory for a model; ``""`` for no known reason. Blocking."""
    if config.backend in _UNREAD_BACKENDS or path.is_dir():
        return ""
    try:
        kind = detect(path).kind
    except UnknownFileError:
        return ""
    except ServerError as error:
        return str(error)
    if kind.is_pickle and config.parameters.get("PICKLE") != _TRUSTED:
        return (
            f"{path} is a pickle, and reading one runs any code that its writer put into it. Save the estimator with "
            "skops.io.dump(estimator, 'model.skops') instead; or, if you trust the file, allow it in config.pbtxt: "
            f'parameters {{ key: "PICKLE" value {{ string_value: "{_TRUSTED}" }} }}'
        )
    return ""
