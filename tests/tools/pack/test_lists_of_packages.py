"""Models that name a list of packages: packed when they are loaded, once, where the operator allows it."""

import sys
from pathlib import Path

import pytest

from tests.support.packed_environments import conda_environment, second_minor, skip_without_channel
from tests.support.server import ServerProcess, serving

pytestmark = pytest.mark.timeout(400)

DEADLINE_S = 240
"""An interpreter is copied, and all of its library compiled."""


@pytest.fixture
def flags(tmp_path):
    return (f"--environment-cache-directory={tmp_path / 'cache'}", "--allow-pack-at-load", "--exit-on-error=false")


def served(server: ServerProcess) -> ServerProcess:
    """Waits until its model serves; skips the test where no index answers."""
    outcome = server.wait_for(r"(successfully loaded 'm')|failed to load 'm' version 1: (.*)", DEADLINE_S)
    if outcome[2] and "index" in outcome[2]:
        pytest.skip(outcome[2])
    assert outcome[1], server.output
    return server.wait_ready()


@pytest.mark.spec("pb-V06")
@pytest.mark.thorough
def test_a_requirements_file_is_packed_once(tmp_path, about, write_about, flags):
    model = write_about(tmp_path / "models", "$$TRITON_MODEL_DIRECTORY/requirements.txt")
    (model / "requirements.txt").write_text("numpy\n")
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        facts = about(served(server))
        assert f"Packing {model}/requirements.txt" in server.output
    assert Path(facts["prefix"]).parent == tmp_path / "cache" / "environments"
    assert facts["version"] == list(sys.version_info[:2])
    assert not list((tmp_path / "cache" / "packed").glob("*.tar.zst"))
    with serving(tmp_path / "models", flags=flags) as server:
        assert about(server)["prefix"] == facts["prefix"]
        assert "Packing " not in server.output
        assert "Unpacked /" not in server.output


@pytest.mark.thorough
def test_an_environment_yml_is_packed(tmp_path, about, write_about, flags):
    minor = second_minor()
    model = write_about(tmp_path / "models", "$$TRITON_MODEL_DIRECTORY/environment.yml")
    (model / "environment.yml").write_text(
        f"channels: [{skip_without_channel()}]\ndependencies: [python=3.{minor}, numpy]\nvariables: {{COLOUR: red}}\n"
    )
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        facts = about(served(server))
    assert facts["version"] == [3, minor]
    assert (facts["environ"]["COLOUR"], facts["environ"]["CONDA_PREFIX"]) == ("red", facts["prefix"])


def test_a_list_that_cannot_be_packed_is_refused_with_the_reason(tmp_path, write_about, flags):
    model = write_about(tmp_path / "models", "$$TRITON_MODEL_DIRECTORY/environment.yml")
    (model / "environment.yml").write_text("dependencies: [[[\n")
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        reason = server.wait_for(r"failed to load 'm' version 1: Internal: (.*)", DEADLINE_S)[1]
    assert reason.startswith(f"{model}/environment.yml cannot be packed: ")
    assert "Traceback" not in reason


@pytest.mark.faults
def test_a_server_that_is_told_to_stop_while_it_packs_does(tmp_path, write_about, flags):
    model = write_about(tmp_path / "models", "$$TRITON_MODEL_DIRECTORY/requirements.txt")
    (model / "requirements.txt").write_text("numpy\n")
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        server.wait_for("Packing /", DEADLINE_S)
        assert server.stop() == 0


@pytest.mark.thorough
@pytest.mark.spec("pb-V01")
def test_a_conda_environment_knows_where_it_lies(tmp_path, about, write_about, flags):
    """Its prefixes are written by the host, in text and in binaries; its hooks set variables, and so does its author."""
    archive = conda_environment(second_minor())
    write_about(tmp_path / "models", archive)
    with serving(tmp_path / "models", flags=flags, ready=False) as server:
        facts = about(served(server))
    prefix = Path(facts["prefix"])
    assert facts["environ"]["CONDA_PREFIX"] == str(prefix)
    assert facts["environ"]["PACKED_BY"] == "conda"
    assert facts["environ"]["AWKWARD_HOME"] == f"{prefix}/share/awkward"
    # The loader of this process has read it; programs of the system that it starts are to find the system's.
    assert not {"LD_LIBRARY_PATH", "PYBACKEND_LIBRARY_PATH"} & set(facts["environ"])
    files = [path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()]
    placeholders = [path.relative_to(prefix) for path in files if b"where_it_was_built_" in path.read_bytes()]
    # What conda itself keeps in its books stays as it is: nothing reads it here.
    assert {path.parts[0] for path in placeholders} - {"conda-meta"} <= {"bin"}
    assert [path.name for path in placeholders if path.parts[0] == "bin"] == ["conda-unpack"]
    changed = [path for path in files if str(prefix).encode() in path.read_bytes()]
    assert changed
