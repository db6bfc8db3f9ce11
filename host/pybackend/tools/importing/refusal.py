"""Reasons for which a load refuses the file of a framework. They are found without running anything."""

from __future__ import annotations

from pathlib import Path

from pybackend.errors import ServerError
from pybackend.modelconfig.schema import ModelConfig
from pybackend.tools.importing.detection import detect
from pybackend.tools.importing.kinds import UnknownFileError

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
