"""The environment variables of a process that runs in an environment."""

import json

import pytest

from pybackend.environment.environment import activation_variables
from pybackend.environment.manifest import EnvironmentManifest

HOST = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/host/lib"}


@pytest.mark.spec("pb-V01")
def test_it_looks_activated(tmp_path):
    assert activation_variables(tmp_path, None, HOST) == {
        "VIRTUAL_ENV": str(tmp_path),
        "VIRTUAL_ENV_PROMPT": f"({tmp_path})",
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": f"{tmp_path}/lib",
        "PYBACKEND_LIBRARY_PATH": f"{tmp_path}/lib",
    }
    kept = activation_variables(tmp_path, None, HOST, keeps_library_path=True)
    assert kept["LD_LIBRARY_PATH"] == f"{tmp_path}/lib"
    assert "PYBACKEND_LIBRARY_PATH" not in kept
    assert activation_variables(tmp_path, None, {})["PATH"] == f"{tmp_path}/bin"


def test_a_conda_environment_knows_that_it_is_one(tmp_path):
    (tmp_path / "conda-meta").mkdir()
    assert activation_variables(tmp_path, None, HOST)["CONDA_PREFIX"] == str(tmp_path)


WANTED = {
    "OMP_NUM_THREADS": "1",
    "PATH": "x",
    "LD_PRELOAD": "evil.so",
    "PYTHONPATH": "x",
    "A=B": "x",
    "N": "\0",
    "": "x",
}


@pytest.mark.parametrize("by_conda", [True, False], ids=["conda", "manifest"])
def test_variables_of_the_author_come_along_except_those_that_change_what_runs(by_conda, tmp_path):
    manifest = EnvironmentManifest("linux-x86_64", "3.12", variables=WANTED)
    if by_conda:
        manifest = None
        (tmp_path / "conda-meta").mkdir()
        (tmp_path / "conda-meta" / "state").write_text(json.dumps({"env_vars": {**WANTED, "NUMBER": 5}}))
    variables = activation_variables(tmp_path, manifest, HOST)
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["PATH"] == f"{tmp_path}/bin:/usr/bin:/bin"
    assert not {"LD_PRELOAD", "PYTHONPATH", "A=B", "N", "", "NUMBER"} & set(variables)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"env_vars": 3}', "[" * 100_000], ids=["empty", "list", "none", "number", "deep"]
)
def test_a_damaged_state_is_none(text, tmp_path):
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "state").write_text(text)
    assert "CONDA_PREFIX" in activation_variables(tmp_path, None, HOST)
