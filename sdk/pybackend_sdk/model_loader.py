"""Imports a model's class from ``<version directory>/model.py`` or a backend's file; completes its configuration."""

import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any, Dict, Optional

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.model_config import ModelConfig
from pybackend_sdk.spelling import closest


def import_model(model_file: str, *, of_backend: bool = False) -> type:
    """Import a model file and return its class.

    A model's own file becomes the module ``<directory>.<stem>`` (``1.model``), so that ``from . import helper`` works.
    Its directory and the parent of that are appended to ``sys.path``, after site-packages. The working directory comes
    last: if it came first, a directory called ``1`` in it would shadow the model.

    The file of a Python-based backend becomes the module ``<stem>`` (``model``), and only its directory is appended.
    Any exception from the file's own code is raised.
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
    """Run the class's ``auto_complete_config`` on the configuration; None if the class has no such function."""
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


CLASS_NAME = "TritonPythonModel"

_OPTIONAL_METHODS = ("initialize", "finalize", "auto_complete_config", "is_ready")
_METHODS = {"execute", *_OPTIONAL_METHODS}

_SIMILAR = 0.85
"""How alike two names must be, from 0 to 1, for one to be taken for a misspelling of the other."""


def model_class_of(module: Any, model_file: str) -> Any:
    """Return the class that a model file defines, or whatever else makes model objects under its name."""
    model_class = getattr(module, CLASS_NAME, None)
    if callable(model_class):
        return model_class
    if model_class is not None:
        kind = type(model_class).__name__
        raise TritonModelException(f"TritonPythonModel in {model_file} must be a class, but it is of type '{kind}'")
    raise TritonModelException(
        f"module '{module.__name__}' has no attribute 'TritonPythonModel': {model_file} must define class TritonPythonModel"
        f"{_suggested(_similar_class(module))}"
    )


def check_execute(model: Any, model_file: str) -> None:
    """Check that an initialised model object can execute requests; ``initialize`` may still have given it the method."""
    execute = getattr(model, "execute", None)
    if callable(execute):
        return
    text = f"Python model {model_file} does not implement `execute` method."
    if execute is not None:
        text += f" TritonPythonModel.execute cannot be called: it is of type '{type(execute).__name__}'"
    else:
        text += f" TritonPythonModel has no method execute{_suggested(similar_method(model, 'execute'))}"
    raise TritonModelException(text)


def warn_of_misspelt_methods(model_class: Any) -> None:
    """Log a warning for each optional method that the class lacks while it has one with a similar name."""
    if not isinstance(model_class, type):
        return
    for name in _OPTIONAL_METHODS:
        similar = "" if hasattr(model_class, name) else similar_method(model_class, name)
        if similar:
            Logger.log_warn(
                f"TritonPythonModel has no method {name}; did you mean '{similar}'? The server does not call '{similar}'"
            )


def similar_method(owner: Any, name: str) -> str:
    """Return the public method whose name is most like ``name``, ``""`` if none is."""
    others = (each for each in dir(owner) if not each.startswith("_") and each not in _METHODS)
    return closest(name, (each for each in others if _is_method(owner, each)), _SIMILAR)


def _is_method(owner: Any, name: str) -> bool:
    kind = owner if isinstance(owner, type) else type(owner)
    return callable(getattr(kind, name, None))


def _similar_class(module: Any) -> str:
    """Return the name of the class that the author may have meant, ``""`` if there is none."""
    classes = {
        name: each
        for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__
    }
    similar = closest(CLASS_NAME, classes)
    return similar or next((name for name, each in classes.items() if callable(getattr(each, "execute", None))), "")


def _suggested(name: str) -> str:
    return f"; did you mean '{name}'?" if name else ""
