"""Finds the files of a model in its version directory, and loads them."""

import os
from typing import Any, Mapping, NamedTuple

from pybackend_backends.pytorch import archive
from pybackend_backends.pytorch.exported import load_compiled, load_exported
from pybackend_backends.pytorch.programs import Program, load_class, load_torchscript
from pybackend_backends.pytorch.settings import Settings
from pybackend_sdk.backend import model_path
from pybackend_sdk.error import TritonModelException

_SCRIPT, _EXPORT, _CODE = "model.pt", "model.pt2", "model.py"

CLASS = "class"


class ModelFiles(NamedTuple):
    """The files of one model: an archive of a kind of :mod:`archive`, or CLASS: Python code, with or without a state dict."""

    kind: str
    path: str
    weights: str = ""


def find_files(config: Mapping[str, Any]) -> ModelFiles:
    """Find a model's files: the configured one, else ``model.pt``, ``model.pt2`` or ``model.py``.

    A state dict belongs to the code that has the same name and ends in ``.py``.
    """
    archives = [_EXPORT, _SCRIPT] if config.get("platform") == "torch_aoti" else [_SCRIPT, _EXPORT]
    path = model_path(config, [*archives, _CODE])
    stem, ending = os.path.splitext(path)
    if ending == ".py":
        weights = stem + ".pt"
        return ModelFiles(CLASS, path, weights if os.path.isfile(weights) else "")
    kind = archive.kind_of(path)
    if kind != archive.WEIGHTS:
        return ModelFiles(kind, path)
    code = stem + ".py"
    if not os.path.isfile(code):
        raise TritonModelException(
            f"model '{config['name']}': {path} has weights only (torch.save), and there is no {os.path.basename(code)} "
            "beside it with the class that they belong to. Put it there, or save the whole model with torch.export.save "
            "or torch.jit.save"
        )
    return ModelFiles(CLASS, code, path)


def load(config: Mapping[str, Any], files: ModelFiles, device: str, settings: Settings) -> Program:
    """Load a model for a device such as ``cpu``; empty to follow the file."""
    if files.kind in {archive.TORCHSCRIPT, archive.COMPILED} and settings.compile_options is not None:
        raise TritonModelException(
            f"model '{config['name']}': torch.compile takes Python modules and archives of torch.export, and {files.path} "
            f"is of {files.kind}: remove the parameters TORCH_COMPILE and TORCH_COMPILE_OPTIONAL_PARAMETERS"
        )
    if files.kind == archive.TORCHSCRIPT:
        return load_torchscript(files.path, device, settings.share_weights)
    if files.kind == archive.EXPORTED:
        return load_exported(files.path, device, settings.compile_options)
    if files.kind == archive.COMPILED:
        return load_compiled(files.path)
    return load_class(files.path, files.weights, device, settings.class_name, settings.compile_options)
