"""Models that say which Python they run on, and a cache of environments that the tests of this directory share."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.inference import infer
from tests.support.repositories import tensors, write_model
from tests.support.server import ServerProcess

ABOUT = """
import json
import os
import sys

import numpy

class TritonPythonModel:
    def execute(self, requests):
        import subprocess
        facts = {
            "version": list(sys.version_info[:2]),
            "prefix": sys.prefix,
            "numpy": os.path.dirname(numpy.__file__),
            "path": sys.path,
            "pid": os.getpid(),
            "environ": dict(os.environ),
            "tool": subprocess.run("tool", shell=True, stdout=-1, stderr=-2, universal_newlines=True).stdout.strip(),
        }
        text = np.array([json.dumps(facts)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""


@pytest.fixture
def about() -> Callable[..., dict[str, object]]:
    """Asks a model what it runs on."""

    def about(server: ServerProcess, model: str = "m") -> dict[str, object]:
        return json.loads(infer(server, model, {"IN": np.ones(1, np.float32)})["OUT"].item())

    return about


@pytest.fixture
def write_about() -> Callable[..., Path]:
    """Writes a model that runs in an environment; without one if that is None."""

    def write_about(repository: Path, environment: object, name: str = "m", extra: str = "") -> Path:
        config = f"""
        backend: "python"
        input [ {tensors(IN=("TYPE_FP32", [1]))} ]
        output [ {tensors(OUT=("TYPE_STRING", [1]))} ]
        {extra}
        """
        if environment is not None:
            config += f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}'
        return write_model(repository, name, ABOUT, config)

    return write_about


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The flag that names a cache of environments for all tests that do not look into it."""
    return f"--environment-cache-directory={tmp_path_factory.mktemp('cache')}"
