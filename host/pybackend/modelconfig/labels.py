"""Label files: names for the elements of an output, for clients that use the classification extension."""

import os
from pathlib import Path

from pybackend.author_files import read_beneath
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, TensorConfig

Labels = dict[str, tuple[bytes, ...]]
"""By output: the name of each element, as bytes of the file; empty for an output without labels."""

MOST_LABEL_BYTES = 16 * 1024 * 1024
"""Of one file."""

MOST_LABELS = 1_000_000
"""In all label files of a model, where a file that several outputs share counts once.

The largest vocabularies in use have a few hundred thousand words.
"""


def read_labels(config: ModelConfig, model_directory: Path) -> Labels:
    """Read the label files of all outputs that have one.

    Raises ModelConfigError: UNSUPPORTED, a path leaves the model's directory; INVALID_ARG, a file cannot be read.
    """
    read: dict[str, tuple[bytes, ...]] = {}
    for output in config.outputs:
        name = output.label_filename
        if name and name not in read:
            read[name] = _read(config, output, model_directory)
            if sum(map(len, read.values())) > MOST_LABELS:
                raise _unreadable(config, output, model_directory / name, f"more than {MOST_LABELS} labels")
    return {output.name: read[output.label_filename] for output in config.outputs if output.label_filename}


def _read(config: ModelConfig, output: TensorConfig, model_directory: Path) -> tuple[bytes, ...]:
    path = model_directory / output.label_filename
    if model_directory not in Path(os.path.normpath(path)).parents:
        raise ModelConfigError(
            f"label file path '{path}' for output '{output.name}' in model '{config.name}' is outside model directory. "
            f"Move the file into {model_directory} ({config.source})",
            ErrorCode.UNSUPPORTED,
        )
    try:
        content = read_beneath(model_directory, output.label_filename, MOST_LABEL_BYTES)
    except OSError as error:
        raise _unreadable(config, output, path, str(error.strerror)) from None
    if content.count(b"\n") > MOST_LABELS:  # after splitting, lines take ten times the memory
        raise _unreadable(config, output, path, f"more than {MOST_LABELS} labels")
    lines = content.split(b"\n")
    if not lines[-1]:
        del lines[-1]  # the empty string after the last newline
    return tuple(line.removesuffix(b"\r") for line in lines)


def _unreadable(config: ModelConfig, output: TensorConfig, path: Path, reason: str) -> ModelConfigError:
    return ModelConfigError(
        f"failed to read label file '{path}' for output '{output.name}' in model '{config.name}': {reason}. "
        f"It holds one label per line; without one, leave label_filename out ({config.source})"
    )
