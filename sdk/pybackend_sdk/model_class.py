"""Checks of a model's class: what it must have, and names that look like misspelt ones."""

from typing import Any

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.logger import Logger
from pybackend_sdk.spelling import closest

CLASS_NAME = "TritonPythonModel"

_OPTIONAL_METHODS = ("initialize", "finalize", "auto_complete_config", "is_ready")
_METHODS = {"execute", *_OPTIONAL_METHODS}

_SIMILAR = 0.85
"""How alike two names must be, from 0 to 1, for one to be taken for a misspelling of the other."""


def model_class_of(module: Any, model_file: str) -> Any:
    """Return the class that a model file defines, or whatever else makes model objects under its name.

    Raises:
        TritonModelException: the file has no ``TritonPythonModel``, or it is not callable.
    """
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
    """Check that an initialised model object can execute requests; ``initialize`` may still have given it the method.

    Raises:
        TritonModelException: it has no callable ``execute``.
    """
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
