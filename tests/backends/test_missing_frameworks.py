"""Every backend without its framework: in an environment that lacks it, and in the server's own Python."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pybackend.modelconfig.backends import backends_with_recipes
from pybackend.modelconfig.known_backends import known_backend
from pybackend_wire.installation import install_command
from tests.support.server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LACKING = {
    "fil": ("xgboost.json", "xgboost"),
    "litert": ("model.tflite", "ai_edge_litert"),
    "onnxruntime": ("model.onnx", "onnxruntime"),
    "openvino": ("model.xml", "openvino"),
    "pytorch": ("model.pt", "torch"),
    "sklearn": ("model.skops", "sklearn"),
    "tensorflow": ("model.savedmodel/saved_model.pb", "tensorflow"),
    "transformers": ("config.json", "torch"),
    "vllm": ("model.json", "vllm"),
}
"""A file of each backend, and the package that it looks for first."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """This Python with numpy, and nothing else."""
    directory = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = (directory / "lib").glob("python3*/site-packages")
    (libraries,) = np.__path__
    for library in Path(libraries).parent.glob("numpy*"):
        (packages / library.name).symlink_to(library)
    return directory


@pytest.fixture(scope="module")
def reasons(tmp_path_factory, environment):
    models = tmp_path_factory.mktemp("models")
    environment = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{environment}" }} }}'
    for backend, (file, _) in LACKING.items():
        write(models / backend, file, f'backend: "{backend}"\n{environment}')
    for backend in absent():
        write(models / f"{backend}_here", LACKING[backend][0], f'backend: "{backend}"')
    with serving(models, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(rf"0 of {len(list(models.iterdir()))} models are ready", 240)
        index = server.request("POST", "/v2/repository/index", {}).json
        yield {entry["name"]: entry["reason"] for entry in index}


def write(model: Path, file: str, config: str) -> None:
    path = model / "1" / file
    path.parent.mkdir(parents=True)
    path.write_text('{"model": "m"}')
    (model / "config.pbtxt").write_text(config)


def absent() -> list[str]:
    """The backends whose framework the Python of the tests does not have."""
    return [backend for backend in LACKING if not any(map(importlib.util.find_spec, known_backend(backend).modules))]


def test_every_backend_is_here():
    assert set(LACKING) == set(backends_with_recipes())


@pytest.mark.parametrize("backend", LACKING)
def test_the_load_is_refused_with_the_commands_that_mend_it(reasons, backend):
    extra = known_backend(backend).extra
    way_out = (
        rf"Make an environment with `pybackend pack --backend {backend} -o {backend}\.tar\.gz` and serve with --backend-config={backend},"
        rf"environment={backend}\.tar\.gz; or install it beside the server with "
        rf"(?:{re.escape(install_command(extra))}|`pip install '.\[{extra}\]'` in a clone of pybackend)"
    )
    lacks = rf"backend '{backend}' needs the Python package {LACKING[backend][1]}, which \S+/bin/python\S* does not have\. {way_out}"
    assert re.fullmatch(rf".*{lacks}; or add it to the environment that the model names", reasons[backend])
    if backend in absent():
        lacks = rf"backend '{backend}' of model '{backend}_here' needs the Python package [^,]+, which the server's own Python"
        assert re.fullmatch(rf".*{lacks} \(\S+\) does not have\. {way_out}.*", reasons[f"{backend}_here"])
