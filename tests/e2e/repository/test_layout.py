"""What a repository looks like on disk: which directories are models, which are versions, and what is served of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pybackend.cli.commands import run
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

ALL = identity_config(extra="version_policy { all {} }")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Good and odd directories side by side; ``all {}`` where nothing else is said."""
    repository = tmp_path_factory.mktemp("layout")
    odd = write_model(repository, "odd", IDENTITY, ALL)
    for name in ("0", "007", "abc", "1.5", "-2", "warmup", "initial_state", "configs", ".hidden", "v1"):
        (odd / name).mkdir()
        (odd / name / "model.py").write_text("raise ImportError('this is no version')")
    (odd / "0" / "model.py").write_text((odd / "1" / "model.py").read_text())
    (odd / "2").write_text("a file, no directory")
    (odd / "10").symlink_to(odd / "1")
    (repository / "README.md").write_text("a file beside the models")
    (repository / ".git").mkdir()
    (repository / "empty").mkdir()
    write_model(repository, "empty_version", None, ALL)
    (repository / "no_versions").mkdir()
    (repository / "no_versions" / "config.pbtxt").write_text(ALL)

    def policy(name, text, versions):
        for version in versions:
            write_model(
                repository, name, IDENTITY, identity_config(extra=f"version_policy {{ {text} }}"), version=version
            )

    policy("default", "", (1, 2, 10))
    policy("latest", "latest { }", (1, 2, 10))
    policy("latest_two", "latest { num_versions: 2 }", (1, 2, 10))
    policy("latest_many", "latest { num_versions: 9 }", (1, 2))
    policy("every", "all { }", (2, 3, 30))
    policy("specific", "specific { versions: [ 1, 10, 7 ] }", (1, 2, 10))
    policy("specific_none", "specific { versions: [ 7, 8 ] }", (1, 2))
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for(r"specific_none +\| ")
        yield server


@pytest.mark.spec("srv-R01")
def test_version_directories(server):
    assert server.get("/v2/models/odd").json["versions"] == ["0", "1", "10"]
    assert server.get("/v2/models/odd/versions/0/ready").status == 200
    for name in ("abc", "1.5", "-2", "v1"):
        assert f"ignore version directory '{name}' which fails to convert to integral number" in server.output
    assert "ignore version directory '007' which has a leading zero" in server.output
    for name in ("warmup", "initial_state", "configs", ".hidden", "'2'"):
        assert f"ignore version directory '{name.strip(chr(39))}'" not in server.output


@pytest.mark.spec("srv-R01")
def test_files_and_hidden_directories_are_no_models(server):
    for name in ("README.md", ".git"):
        assert server.get(f"/v2/models/{name}").error == f"Request for unknown model: '{name}' is not found"


@pytest.mark.spec("srv-R01")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no_versions", "at least one version must be available under the version policy of model 'no_versions'"),
        ("empty", "Invalid model name: Could not determine backend for model 'empty' with no backend in model "
         "configuration. Expected model name of the form 'model.<backend_name>'."),
    ],
)  # fmt: skip
def test_model_without_versions(server, status_of, model, reason, snapshot):
    assert status_of(server, model, "-").startswith(f"UNAVAILABLE: Invalid argument: {reason}")
    reply = server.get(f"/v2/models/{model}")
    assert reply.status == 404
    assert reply.error.startswith(f"Request for unknown model: '{model}' has no available versions")
    assert reply.error == snapshot


@pytest.mark.spec("srv-R01")
def test_version_without_a_model_file(server, status_of, repository):
    path = repository / "empty_version" / "1" / "model.py"
    assert f"Python model file not found in '{path}'" in status_of(server, "empty_version")


@pytest.mark.spec("srv-R03")
@pytest.mark.parametrize(
    ("model", "versions"),
    [
        ("default", ["10"]),
        ("latest", ["10"]),
        ("latest_two", ["2", "10"]),
        ("latest_many", ["1", "2"]),
        ("every", ["2", "3", "30"]),
        ("specific", ["1", "10"]),
    ],
)
def test_version_policy(server, model, versions):
    assert server.get(f"/v2/models/{model}").json["versions"] == versions
    request = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert server.infer(model, request).json["model_version"] == versions[-1]
    for version in versions:
        assert server.infer(f"{model}/versions/{version}", request).json["model_version"] == version
    assert server.infer(f"{model}/versions/99", request).status == 404


@pytest.mark.spec("srv-R03")
def test_specific_versions_that_are_missing(server, status_of):
    assert "version 7 is specified for model 'specific', but the version directory is not present" in server.output
    assert "at least one version must be available under the version policy of model 'specific_none'" in status_of(
        server, "specific_none", "-"
    )


@pytest.mark.spec("srv-R01")
@pytest.mark.parametrize("kind", ["missing", "a file", "unreadable"])
def test_repository_that_is_none(tmp_path, kind):
    path = tmp_path / "repository"
    if kind == "a file":
        path.touch()
    elif kind == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        path.mkdir(mode=0)
    command = [
        sys.executable,
        "-m",
        "pybackend",
        "serve",
        str(path),
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"repository path is not a valid directory: '{path}'" in line


WITH_FILES = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: 2 } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" } ]
model_warmup [ { name: "w" batch_size: 1 inputs { key: "IN" value: {
  data_type: TYPE_FP32 dims: 2 input_data_file: "two.bin" } } } ]
"""


@pytest.fixture
def path_with_dots(tmp_path, monkeypatch):
    """``way/../models`` from the working directory, where ``way`` is a link: the kernel follows it first."""
    place = tmp_path / "elsewhere" / "below"
    place.mkdir(parents=True)
    (tmp_path / "way").symlink_to(place)
    directory = write_model(tmp_path / "elsewhere" / "models", "labelled", IDENTITY, WITH_FILES)
    (directory / "labels.txt").write_text("a\nb\n")
    (directory / "warmup").mkdir()
    (directory / "warmup" / "two.bin").write_bytes(bytes(8))
    monkeypatch.chdir(tmp_path)
    return Path("way", "..", "models")


@pytest.mark.parametrize("command", ["serve", pytest.param("dev", marks=pytest.mark.around("pybackend_tools"))])
def test_a_repository_whose_path_has_dots(path_with_dots, command):
    with serving(path_with_dots, command=command) as server:
        assert server.get("/v2/models/labelled/ready").status == 200
        assert ".." not in server.wait_for("following changes of .*" if command == "dev" else "labelled .*")[0]


@pytest.mark.around("pybackend_tools")
@pytest.mark.parametrize("command", ["check", "export-config"])
def test_commands_with_a_repository_whose_path_has_dots(path_with_dots, capsys, command):
    assert run([command, str(path_with_dots)]) == 0, capsys.readouterr()
