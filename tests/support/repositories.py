"""Model repositories, written for a test."""

import os
import shutil
import textwrap
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[1] / "models"
PREAMBLE = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"


GROUPED = "PYBACKEND_TESTS_GROUPED"
"""The environment variable that puts the models of each repository into one process."""

alone = pytest.mark.skipif(GROUPED in os.environ, reason="in one process, the others share this model's fate")
"""Marks tests of what is another in a group."""

by_the_server = pytest.mark.skipif(
    GROUPED in os.environ, reason="in one process, steps pass on their tensors themselves"
)
"""Marks tests of what the server does between the steps of an ensemble."""

_IN_GROUP = 'parameters { key: "PROCESS_GROUP" value { string_value: "tests" } }'


def _grouped(config: str) -> str:
    alone = (
        not os.environ.get(GROUPED) or "PROCESS_GROUP" in config or "ensemble" in config or "EXECUTION_ENV" in config
    )
    return config if alone else f"{config}\n{_IN_GROUP}\n"


def tensors(**shapes: tuple[str, list[int]]) -> str:
    """The body of an ``input`` or ``output`` list: ``tensors(IN=("TYPE_FP32", [4]))``."""
    return ", ".join(
        f'{{ name: "{name}" data_type: {datatype} dims: {dims} }}' for name, (datatype, dims) in shapes.items()
    )


def write_model(
    repository: Path,
    name: str,
    code: str | None,
    config: str | None = 'backend: "python"',
    *,
    version: int = 1,
    filename: str = "model.py",
) -> Path:
    """Write a model and return its directory.

    Args:
        repository: the directory of models.
        name: the model's name.
        code: of the model file; pb_utils and np are imported for it. None leaves the file out.
        config: text of config.pbtxt, None for none.
        version: the version directory.
        filename: the model file's name.
    """
    directory = repository / name
    (directory / str(version)).mkdir(parents=True, exist_ok=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(_grouped(textwrap.dedent(config)))
    if code is not None:
        path = directory / str(version) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PREAMBLE + textwrap.dedent(code))
    return directory


def model_code(name: str) -> str:
    """The code of a model in ``tests/models``, to write it with a configuration of the test's own."""
    return (MODELS / name / "1" / "model.py").read_text()


def code_part(name: str) -> str:
    """A file of ``tests/models/parts``: for the top of a model file, which then has its names."""
    return (MODELS / "parts" / f"{name}.py").read_text()


def copy_model(repository: Path, name: str, extra: str = "") -> Path:
    """Copy a model of ``tests/models`` and return its directory; ``extra`` is added to its configuration."""
    directory = repository / name
    shutil.copytree(MODELS / name, directory, dirs_exist_ok=True)
    path = directory / "config.pbtxt"
    path.write_text(_grouped(f"{path.read_text()}{textwrap.dedent(extra)}\n"))
    return directory


IDENTITY = model_code("identity")
"""Answers every input ``IN*`` as output ``OUT*``."""


def identity_config(datatype: str = "TYPE_FP32", dims: str = "[ -1 ]", extra: str = "") -> str:
    """A configuration for :data:`IDENTITY` with one tensor."""
    return f"""
backend: "python"
input [ {{ name: "IN" data_type: {datatype} dims: {dims} }} ]
output [ {{ name: "OUT" data_type: {datatype} dims: {dims} }} ]
{extra}
"""
