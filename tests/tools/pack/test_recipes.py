"""Recipes and their locks: those in ``envs/``, of which two are packed and served, and those of backends."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from pybackend.environment.manifest import host_platform
from pybackend.modelconfig.backends import backends_with_recipes, lock_of, recipe_of
from pybackend_tools.pack.lock import read_lock
from pybackend_tools.pack.reader import read_specification
from pybackend_tools.pack.specification import identity
from tests.floor.environments import interpreters
from tests.support.backend_locks import places
from tests.support.conda_channel import kept, write_wheel
from tests.support.inference import infer
from tests.support.packed_environments import manifest, run_pack
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

pytestmark = pytest.mark.timeout(400)

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


@pytest.mark.thorough
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


def _requirements(path):
    lines = re.sub(r"\\\n\s*", "", path.read_text()).splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("backend", backends_with_recipes())
def test_the_lock_of_a_backend_satisfies_its_recipe_on_each_python(backend):
    assert lock_of(backend).exists(), f"type: make locks BACKENDS={backend}"
    wanted = [Requirement(line) for line in [*_requirements(recipe_of(backend)), "msgpack"]]
    lines = _requirements(lock_of(backend))
    assert all(re.fullmatch(r"[^ ]+==[^ ]+( ; .+?)?( --hash=sha256:[0-9a-f]{64})+", line) for line in lines)
    pins = [Requirement(line.partition(" --hash")[0]) for line in lines]
    for place in places():
        chosen = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(place)]
        versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in chosen}
        assert len(versions) == len(chosen), "two versions of one package"
        for requirement in wanted:
            if requirement.marker is None or requirement.marker.evaluate(place):
                assert requirement.specifier.contains(versions[requirement.name], prereleases=True), requirement


def test_a_backend_is_packed_from_its_lock(monkeypatch):
    """The versions are those of the lock, or the newest; where those of the lock cannot be had, the error says so."""
    arguments = ("--backend", "onnxruntime", "--dry-run", "--python")
    minor = max(minor for minor in interpreters() if minor <= 13)
    done = run_pack(*arguments, f"3.{minor}")
    if done.returncode == 4:
        pytest.skip(done.stderr)
    shown = {tuple(line.split()[:2]) for line in done.stdout.splitlines() if line.endswith(" pypi")}
    assert len(shown) >= 2
    assert shown <= {tuple(re.split("==| ", line)[:2]) for line in _requirements(lock_of("onnxruntime"))}
    if 8 in interpreters() and (done := run_pack(*arguments, "3.8")).returncode != 4:
        assert done.returncode == 3
        assert "These are the versions that pybackend lists for onnxruntime: --upgrade takes the newest" in done.stderr
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    done = run_pack("--backend", "pytorch", "--dry-run", "--python", "3.7")
    assert done.returncode == 2
    assert "warning: UV_TORCH_BACKEND chooses other builds of torch than pybackend lists" in done.stderr


def test_a_backend_is_packed_from_a_directory_of_wheels(python, tmp_path):
    """Its name, and that of a file with constraints, are relative to where the command is typed."""
    for version in ("1.20", "1.21"):
        write_wheel(tmp_path / "wheels", "onnxruntime", version, {"onnxruntime.py": ""}, requires=["numpy"])
    write_wheel(tmp_path / "wheels", "numpy", "2.0", {"numpy.py": ""})
    (tmp_path / "pins.txt").write_text("onnxruntime<1.21\n")
    settings = {"UV_OFFLINE": "1", "UV_FIND_LINKS": "wheels", "UV_CONSTRAINT": "pins.txt", "UV_CACHE_DIR": "cache"}
    flags = ("--backend", "onnxruntime", "--upgrade", "--python", python, "--dry-run")
    done = run_pack(*flags, cwd=tmp_path, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()[1:-1]]
    assert [(name, version, place) for name, version, *_, place in shown] == [
        ("numpy", "2.0", str(tmp_path / "wheels")),
        ("onnxruntime", "1.20", str(tmp_path / "wheels")),
    ]
    assert (tmp_path / "cache").is_dir()
