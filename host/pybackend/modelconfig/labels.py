"""The files that give the elements of an output names, for clients that ask for classes rather than for the tensor."""

from __future__ import annotations

import os
from pathlib import Path

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, TensorConfig

Labels = dict[str, tuple[bytes, ...]]
"""By output: the name of each element, as bytes of the file; empty for one without."""


def read_labels(config: ModelConfig, model_directory: Path) -> Labels:
    """Read the label files of all outputs that have one.

    Args:
        config: finished.
        model_directory: the paths in the configuration count from here.

    Raises:
        ModelConfigError: UNSUPPORTED, a path leaves the model's directory; INVALID_ARG, a file cannot be read.
    """
    return {output.name: _read(config, output, model_directory) for output in config.outputs if output.label_filename}


def _read(config: ModelConfig, output: TensorConfig, model_directory: Path) -> tuple[bytes, ...]:
    path = model_directory / output.label_filename
    if model_directory not in Path(os.path.normpath(path)).parents:
        raise ModelConfigError(
            f"label file path '{path}' for output '{output.name}' in model '{config.name}' is outside model directory. "
            f"Move the file into {model_directory} ({config.source})",
            ErrorCode.UNSUPPORTED,
        )
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ModelConfigError(
            f"failed to read label file '{path}' for output '{output.name}' in model '{config.name}': {error.strerror}. "
            f"It holds one label per line; without one, leave label_filename out ({config.source})"
        ) from None
    if not lines[-1]:
        del lines[-1]  # what follows the last line's end
    return tuple(line.removesuffix(b"\r") for line in lines)
