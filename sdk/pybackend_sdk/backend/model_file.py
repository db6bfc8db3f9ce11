"""Finds the file or directory that holds a model, in its version directory."""

import os
from typing import Any, Mapping, Sequence

from pybackend_sdk.error import TritonModelException
from pybackend_sdk.runtime import get_model_dir
from pybackend_sdk.spelling import closest

_MOST_NAMES = 20


def model_path(config: Mapping[str, Any], names: Sequence[str]) -> str:
    """The absolute path of the model's file or directory: the configured one, else the first of ``names`` that exists.

    Args:
        config: the model's configuration; ``default_model_filename`` wins over ``names``.
        names: usual names, the preferred one first. A path such as ``model.onnx/model.onnx`` is one too.

    Raises:
        TritonModelException: there is none; the text has the searched names and the names in the directory.
    """
    directory = get_model_dir()
    configured = config.get("default_model_filename")
    searched = [configured] if configured else list(names)
    for name in searched:
        path = os.path.normpath(os.path.join(directory, name))
        if os.path.exists(path):
            return path
    raise TritonModelException(
        f"model '{config['name']}': there is no {' or '.join(searched)} in {directory}, {_present(directory, searched)}"
    )


def _present(directory: str, searched: Sequence[str]) -> str:
    """A clause about the files in the directory."""
    try:
        present = sorted(os.listdir(directory))[:_MOST_NAMES]
    except OSError as error:
        return f"which cannot be read: {error.strerror}"
    if not present:
        return "which is empty"
    name = closest(searched[0], present) or present[0]
    return f'which holds {", ".join(present)}: rename the model\'s file, or name it in config.pbtxt, default_model_filename: "{name}"'
