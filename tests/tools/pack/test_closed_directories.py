"""Environments that lie where this user may not look: told in one sentence by every command, and no end of a server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.hosts import IS_ROOT, OTHER_UID, public_directory, public_python
from tests.support.repositories import write_model

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def place():
    directory = public_directory()
    yield directory
    (directory / "closed").chmod(0o700)
    shutil.rmtree(directory)


READ = """
import pathlib, sys
from pybackend_tools.pack.errors import PackError
from pybackend_tools.pack.reader import read_specification
try:
    read_specification(pathlib.Path(sys.argv[1]))
except PackError as error:
    sys.exit(print(error) or error.status)
"""
"""The first thing that `pybackend pack` does, without the programs that it needs later."""


def run(place: Path, *arguments: object) -> tuple[int, str]:
    """What a user runs who is not root: its exit status, and what it says."""
    home = place / "home"
    home.mkdir()
    if IS_ROOT:
        os.chown(home, OTHER_UID, OTHER_UID)
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [public_python(place), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=variables,
        timeout=60,
        **({"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []} if IS_ROOT else {}),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["inspect", "inspect below", "pack", "serve"])
@pytest.mark.thorough
def test_a_closed_directory(command, place):
    closed = place / "closed"
    closed.mkdir(0o000)
    config = (
        'backend: "python"\n'
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\noutput [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{closed}" }} }}\n'
    )
    write_model(place / "models", "m", "", config)
    arguments, status = {
        "inspect": (("-m", "pybackend", "env", "inspect", closed), 1),
        "inspect below": (("-m", "pybackend", "env", "inspect", closed / "env.tar"), 1),
        "pack": (("-c", READ, closed), 2),
        "serve": (
            (
                "-m",
                "pybackend",
                "serve",
                place / "models",
                "--http-port=0",
                "--grpc-port=0",
                "--metrics-port=0",
                "--sandbox=off",
            ),
            1,
        ),
    }[command]
    ended, said = run(place, *arguments)
    assert ended == status, said
    assert "cannot be read" in said or f"cannot read {closed}" in said
    assert "Permission denied" in said
    if command == "serve":
        assert "failed to load all models: 0 of 1 model is ready in " in said
