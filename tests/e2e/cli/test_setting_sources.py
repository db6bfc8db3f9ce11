"""Settings from variables and a file: their order, their sources, and what is said about wrong ones."""

import json
import os
import tomllib

import numpy as np
import pytest

from pybackend.errors import ServerError
from tests.support.command_line import serve_settings
from tests.support.inference import infer
from tests.support.repositories import identity_config, write_model
from tests.support.server import serving

TELLING = """
import json, os

class TritonPythonModel:
    def execute(self, requests):
        names = [name for name in os.environ if name.startswith("PYBACKEND_")]
        answer = np.array([len(names)], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)]) for _ in requests]
"""


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """The settings of variables (by their flags), of a file and of a command line."""

    def read(*arguments, file=None, **variables):
        for name in [name for name in os.environ if name.startswith("PYBACKEND_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(f"PYBACKEND_{name.upper()}", value)
        if file is not None:
            (tmp_path / "server.toml").write_text(file)
            arguments = (f"--config-file={tmp_path}/server.toml", *arguments)
        return serve_settings(["serve", *arguments])

    return read


def test_the_strongest_source_wins(settings):
    file = 'http-port = 1\ngrpc-port = 1\nmetrics-port = 1\nid = "file"'
    found = settings("models", "--http-port=3", file=file, http_port="2", grpc_port="2")
    assert (found.http.port, found.grpc.port, found.http.metrics_port, found.server_id) == (3, 2, 1, "file")
    assert settings("models").http.port == 8000


def test_lists_come_from_one_source_as_a_whole(settings):
    file = 'model-control-mode = "explicit"\nload-model = ["a", "b"]\nmodel-repository = ["x", "y"]'
    found = settings(file=file)
    assert found.models.startup_models == ("a", "b")
    assert [path.name for path in found.repositories] == ["x", "y"]
    assert settings(file=file, load_model="c\nd,e").models.startup_models == ("c", "d,e")
    assert settings(file=file, load_model='["f", "g h"]').models.startup_models == ("f", "g h")
    assert settings("--load-model=i", file=file, load_model="c").models.startup_models == ("i",)
    assert [path.name for path in settings("z", file=file).repositories] == ["z"]


def test_switches_and_other_names(settings, tmp_path):
    assert not settings("models", file="exit-on-error = false").exit_on_error
    assert settings("models", exit_on_error="on").exit_on_error
    assert not settings("models", allow_http="false").http.enabled
    assert [path.name for path in settings(model_store="old").repositories] == ["old"]
    assert settings("models", id="").server_id == "triton"
    (tmp_path / "named.toml").write_text('id = "named"')
    assert settings("models", config_file=f"{tmp_path}/named.toml").server_id == "named"
    assert settings("models", file='id = "given"', config_file=f"{tmp_path}/named.toml").server_id == "given"


WRONG = {
    "a variable with a wrong value": ({"http_port": "web"}, ""),
    "a variable with a wrong list": ({"debug": "[a"}, ""),
    "an unknown key": ({}, "http-prot = 1"),
    "a key with underscores": ({}, "http_port = 1"),
    "a key like none": ({}, "colour = 1"),
    "a file that names a file": ({}, 'config-file = "x"'),
    "a number that is none": ({}, 'http-port = "web"'),
    "a boolean for a number": ({}, "http-port = true"),
    "a number for text": ({}, "id = 5"),
    "a list for one value": ({}, "http-port = [1, 2]"),
    "a table": ({}, "[http]\nport = 1"),
    "a table for a value": ({}, "http-port.x = 1"),
    "no TOML": ({}, "http-port: 1"),
    "settings that contradict each other": ({"http_port": "5"}, "metrics-port = 5"),
}


@pytest.mark.parametrize(("variables", "file"), WRONG.values(), ids=WRONG)
def test_mistakes_name_their_source(settings, variables, file, snapshot):
    with pytest.raises(ServerError) as caught:
        settings("models", file=file, **variables)
    assert str(caught.value) == snapshot
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(settings):
    with pytest.raises(ServerError, match=r"^Error: the configuration file /gone\.toml cannot be read: No such file"):
        settings("models", "--config-file=/gone.toml")


def test_unknown_variables_are_named_and_those_of_kubernetes_are_not(settings):
    found = settings("models", http_prot="1", port="tcp://10.0.0.1:8000", port_8000_tcp_addr="10.0.0.1", flavour="x")
    assert found.warnings == (
        "the variable PYBACKEND_FLAVOUR sets no flag of `pybackend serve` and has no effect: `pybackend serve --help` lists "
        "the flags",
        "the variable PYBACKEND_HTTP_PROT sets no flag of `pybackend serve` and has no effect: did you mean "
        "PYBACKEND_HTTP_PORT?",
    )


def test_the_printed_settings_name_their_sources_and_are_a_file_themselves(settings, tmp_path, capsys):
    restriction = "health:key=secret value"
    settings(
        "models",
        "--print-config",
        "--http-port",
        "7",
        "--log-acc",
        f"--http-restricted-api={restriction}",
        file='trace-config = ["opentelemetry,url=http://me:pass@host/"]\nid = "a \\"b\\""',
        cache_config="local,size=2000000",
        rate_limit="execution_count",
    )
    text = capsys.readouterr().out
    lines = text.splitlines()
    for line in (
        'model-repository = ["models"]  # command line',
        "http-port = 7  # command line",
        "log-access = true  # command line",
        'http-restricted-api = ["health:key=(hidden)"]  # command line',
        f'trace-config = ["opentelemetry,url=http://(hidden)@host/"]  # {tmp_path}/server.toml',
        f'id = "a \\"b\\""  # {tmp_path}/server.toml',
        'cache-config = ["local,size=2000000"]  # PYBACKEND_CACHE_CONFIG',
        'rate-limit = "execution_count"  # PYBACKEND_RATE_LIMIT',
        "grpc-port = 8001  # default",
        "# api-key-file is not set",
    ):
        assert line in lines
    assert "secret" not in text
    again = "\n".join(line for line in lines if not line.startswith("config-file"))
    assert tomllib.loads(again)["http-port"] == 7
    assert settings(file=again).http.port == 7


def test_to_print_is_for_the_command_line(settings):
    assert "PYBACKEND_PRINT_CONFIG" in settings("models", print_config="true").warnings[0]


def test_a_server_by_variables_and_a_file(pybackend, tmp_path):
    repository = tmp_path / "models"
    write_model(repository, "telling", TELLING, identity_config())
    file = tmp_path / "pybackend.toml"
    file.write_text(f'model-repository = [{json.dumps(str(repository))}]\nid = "filed"\nlog-verbose = 1\n')
    variables = {**os.environ, "PYBACKEND_CONFIG_FILE": str(file), "PYBACKEND_EXIT_TIMEOUT_SECS": "20"}
    printed = pybackend("serve", "--print-config", env={**variables, "PYBACKEND_MODEL_MEMORY_LIMITS": "1"})
    assert printed.returncode == 0
    assert "warning: the variable PYBACKEND_MODEL_MEMORY_LIMITS sets no flag" in printed.stderr
    assert "exit-timeout-secs = 20  # PYBACKEND_EXIT_TIMEOUT_SECS\n" in printed.stdout
    assert f"log-verbose = 1  # {file}\n" in printed.stdout
    with serving(env=variables) as server:
        assert server.get("/v2").json["name"] == "filed"
        # Variables may hold secrets of the server: its models do not see them.
        assert infer(server, "telling", {"IN": np.ones(1, np.float32)})["OUT"] == [0]
