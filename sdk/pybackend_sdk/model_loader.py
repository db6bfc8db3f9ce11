"""Imports a model's class from ``<version directory>/model.py`` or a backend's file; completes its configuration."""

import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any, Dict, Optional

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.model_class import model_class_of, warn_of_misspelt_methods
from pybackend_sdk.model_config import ModelConfig


def import_model(model_file: str, *, of_backend: bool = False) -> type:
    """Import a model file and return its class.

    A model's own file becomes the module ``<directory>.<stem>`` (``1.model``), so that ``from . import helper`` works.
    Its directory and the parent of that are appended to ``sys.path``, after site-packages. The working directory comes
    last: if it came first, a directory called ``1`` in it would shadow the model.

    The file of a Python-based backend becomes the module ``<stem>`` (``model``), and only its directory is appended.

    Args:
        model_file: absolute path of the file.
        of_backend: whether the file belongs to a backend, which serves models that may bring no code.

    Raises:
        TritonModelException: the file has no ``TritonPythonModel``, or it is not callable.
        BaseException: any exception from the file's own code.
    """
    directory = os.path.dirname(model_file)
    stem = os.path.splitext(os.path.basename(model_file))[0]
    if of_backend:
        sys.path.extend([directory, os.getcwd()])
        module = _import_file(stem, model_file)
    else:
        sys.path.extend([directory, os.path.dirname(directory), os.getcwd()])
        package = os.path.basename(directory)
        _import_package(package, directory)
        module = _import_file(package + "." + stem, model_file)
        setattr(sys.modules[package], stem, module)
    model_class: type = model_class_of(module, model_file)
    warn_of_misspelt_methods(model_class)
    return model_class


def _import_package(name: str, directory: str) -> None:
    """Make the version directory a package, running its ``__init__.py`` if it has one."""
    initial = os.path.join(directory, "__init__.py")
    if os.path.isfile(initial):
        _import_file(name, initial, directory)
        return
    package = ModuleType(name)
    package.__path__ = [directory]
    sys.modules[name] = package


def _import_file(name: str, path: str, package_directory: "Optional[str]" = None) -> ModuleType:
    locations = None if package_directory is None else [package_directory]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise TritonModelException(f"{path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def complete_config(model_class: type, model_name: str, config_json: str) -> "Optional[Dict[str, Any]]":
    """Run the class's ``auto_complete_config`` on the configuration; None if the class has no such function.

    Raises:
        TritonModelException: it returned something other than a ModelConfig, or a value that JSON cannot express.
        BaseException: any exception from the function itself.
    """
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return None
    completed = complete(ModelConfig(config_json))
    if not isinstance(completed, ModelConfig):
        raise TritonModelException(
            f"auto_complete_config function in model '{model_name}' must return a valid pb.ModelConfig object."
        )
    # Through JSON text and back: the host receives plain data, and a copy.
    document: Dict[str, Any] = json.loads(json.dumps(completed.as_dict()))
    return document
