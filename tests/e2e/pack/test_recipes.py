"""The recipes in ``envs/``: complete, and their locks are for what they ask for. Two of them are packed and served."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pybackend.environment.manifest import host_platform
from pybackend.pack.lock import read_lock
from pybackend.pack.reader import read_specification
from pybackend.pack.specification import identity
from tests.floor.environments import interpreters
from tests.support.conda_channel import kept
from tests.support.inference import infer
from tests.support.packed_environments import manifest, run_pack
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

RECIPES = Path(__file__).resolve().parents[3] / "envs"
NAMES = sorted(path.name for path in RECIPES.iterdir() if path.is_dir())
LOAD_DEADLINE_S = 200


def _lock(recipe):
    given = read_specification(recipe / "requirements.txt")
    return read_lock(recipe / "environment.lock", identity(given, ("",)), host_platform())


@pytest.mark.skipif(host_platform() != "linux-x86_64", reason="the locks are for linux-x86_64")
@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_complete(name):
    lock = _lock(RECIPES / name)
    assert lock is not None
    assert lock.python.startswith((RECIPES / name / ".python-version").read_text().strip() + ".")
    locked = {line.split("==")[0] for line in lock.wheels}
    assert {"numpy", "msgpack"} <= locked
    # A version with a + is of an index of its own, which may be a directory: those have no hashes.
    assert all("--hash=sha256:" in line or "+" in line for line in lock.wheels)
    readme = (RECIPES / name / "README.md").read_text()
    assert f"pybackend pack envs/{name}/requirements.txt" in readme
    assert f"({name})" in (RECIPES / "README.md").read_text()


@pytest.mark.skipif(host_platform() != "linux-x86_64", reason="the locks are for linux-x86_64")
@pytest.mark.parametrize("name", ["numpy-only", "py38-floor"])
def test_recipe_is_packed_and_served(name, tmp_path):
    recipe = RECIPES / name
    minor = int((recipe / ".python-version").read_text().split(".")[1])
    if minor not in interpreters():
        pytest.skip(f"there is no CPython 3.{minor} on this machine")

    def make(directory):
        done = run_pack(
            recipe / "requirements.txt", "-o", directory / "env.tar.gz", "--lock", recipe / "environment.lock"
        )
        if done.returncode == 4:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr

    archive = kept(name, [interpreters()[minor], (recipe / "environment.lock").read_text()], make) / "env.tar.gz"
    locked = {tuple(re.split("==| ", line)[:2]) for line in _lock(recipe).wheels}
    assert {(package["name"], package["version"]) for package in manifest(archive)["packages"]} == locked
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{archive}" }} }}'
    write_model(tmp_path / "models", "m", IDENTITY, identity_config() + parameter)
    flags = (f"--environment-cache-directory={tmp_path / 'cache'}",)
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        server.wait_for(rf"model 'm' runs on Python 3\.{minor}\.", LOAD_DEADLINE_S)
        server.wait_for("Started HTTPService", LOAD_DEADLINE_S)
        given = np.arange(4, dtype=np.float32)
        assert infer(server.wait_ready(), "m", {"IN": given})["OUT"].tolist() == given.tolist()
