"""What the programs share that a server runs beside a model, in its environment and sandbox: the question, and the values of requests.

A framework's file may hold code of its author, so these programs are models, and this module lies beside them as
``probe.py``. It runs on any CPython from 3.8 on.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

QUESTION = "question.json"
"""The file beside the program with what it is asked; ``path`` is that of a framework's file, relative to it."""

_TYPES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "float32", "BYTES": "object"}


def question(args: dict[str, str]) -> dict[str, Any]:
    """The question; its path is absolute. ``args`` are those of ``initialize``."""
    directory = os.path.join(args["model_repository"], args["model_version"])
    with open(os.path.join(directory, QUESTION), encoding="utf-8") as file:
        asked = json.load(file)
    return {**asked, "path": os.path.join(directory, asked["path"])}


def arrays(request: dict[str, Any]) -> dict[str, Any]:
    """The input arrays of a request in JSON, by name."""
    return {tensor["name"]: _array(tensor) for tensor in request["inputs"]}


def _array(tensor: dict[str, Any]) -> Any:
    numpy = importlib.import_module("numpy")
    dtype = _TYPES.get(tensor["datatype"], tensor["datatype"].lower())
    return numpy.array(tensor["data"], dtype).reshape(tensor["shape"])


def estimator(path: str) -> Any:
    """The object of scikit-learn in a file."""
    if path.endswith(".skops"):
        skops = importlib.import_module("skops.io")
        # The server has loaded the file: its types are known to be harmless, or the user allowed them.
        return skops.load(path, trusted=skops.get_untrusted_types(file=path))
    return importlib.import_module("joblib").load(path)
