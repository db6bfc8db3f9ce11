"""Names and versions: those that no model can have, and whether those that are there are ready."""

import pytest

from pybackend.errors import ErrorCode
from tests.integration.models.conftest import running_engine
from tests.support.model_control import refusal
from tests.support.repositories import identity_config, write_model


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        (" ", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
        (" .. ", "invalid model name ' .. ', model name must not contain path traversal characters"),
        (".", "invalid model name '.', model name must not contain path traversal characters"),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
        ("/etc", "invalid model name '/etc', model name must not contain path traversal characters"),
    ],
)
def test_names_that_no_model_can_have(repository, start, scratch, name, message):
    engine, run = start()
    for files in (None, {"file:1/model.py": b""}):
        error = refusal(run, engine.control.load(name, "{}", files))
        assert (error.code, error.message) == (ErrorCode.INVALID_ARG, message)


@pytest.mark.parametrize(
    "name",
    ["no_such", "a\0b", "\udcff\ud800", "x" * 300, ".hidden", "__pycache__"],
    ids=["absent", "nul", "surrogates", "long", "hidden", "cache"],
)
def test_models_that_are_not_there(repository, start, name):
    (repository / ".hidden/1").mkdir(parents=True)
    (repository / "__pycache__/1").mkdir(parents=True)
    engine, run = start()
    error = refusal(run, engine.control.load(name))
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(
        f"failed to load '{name}', failed to poll from model repository: there is no directory"
    )
    assert run(engine.is_ready())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """An engine without control of its models, with two versions of one."""
    repository = tmp_path_factory.mktemp("readiness")
    config = identity_config(extra="version_policy { all {} }")
    for version in (1, 2):
        write_model(repository, "a", "class TritonPythonModel: execute = list", config, version=version)
    with running_engine(repository) as (engine, run):
        yield engine, run


class TestReadiness:
    @pytest.mark.parametrize(("version", "ready"), [("", True), ("1", True), ("2", True), ("3", False), ("0", False)])
    def test_of_versions(self, loaded, version, ready):
        engine, run = loaded
        assert run(engine.is_ready_by_name("a", version)) is ready
        assert run(engine.is_ready_by_name("never_loaded", version)) is False

    @pytest.mark.parametrize(
        ("name", "version", "message"),
        [
            ("b", "x", "failed to get model version from specified version string 'x'"),
            ("a", "x", "failed to get model version from specified version string 'x'"),
            ("a", "1.0", "failed to get model version from specified version string '1.0'"),
            ("a", "-1", "invalid model version specified '-1' , version should be an integral value > 0"),
        ],
    )
    def test_that_nobody_can_tell(self, loaded, name, version, message):
        engine, run = loaded
        error = refusal(run, engine.is_ready_by_name(name, version))
        assert error.code is ErrorCode.INVALID_ARG
        assert error.message.startswith(message)
