"""Which models a server loads at start, and what the loads of its life leave behind."""

import signal

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from pybackend.cli.commands import run
from tests.support.gates import wait_until
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

EXPLICIT = "--model-control-mode=explicit"
LOAD_NEW = """
config = json.dumps({
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}],
})
pb_utils.load_model("new", config, {"file:1/model.py": b"class TritonPythonModel: execute = list"})
return out()
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("modes")
    for name in ("a", "b", "c"):
        write_model(repository, name, IDENTITY, identity_config())
    return repository


def ready(server):
    return [name for name in "abc" if server.get(f"/v2/models/{name}/ready").status == 200]


@pytest.mark.spec("srv-R06")
def test_explicit_mode_loads_nothing_and_is_ready(repository):
    with serving(repository, flags=(EXPLICIT,)) as server:
        assert ready(server) == []
        server.wait_for("No model is loaded at start")
        assert server.stub_pids() == []
        reply = server.get("/v2/models/a")
        assert (reply.status, reply.error) == (404, "Request for unknown model: 'a' is not found")
        assert server.stop() == 0


@pytest.mark.spec("srv-R06")
@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--load-model=b",), ["b"]),
        (("--load-model=c", "--load-model", "a"), ["a", "c"]),
        (("--load-model=*",), ["a", "b", "c"]),
    ],
)
def test_explicit_mode_loads_what_is_named(repository, flags, names):
    with serving(repository, flags=(EXPLICIT, *flags)) as server:
        assert ready(server) == names


@pytest.mark.spec("srv-R06")
@pytest.mark.spec("srv-P04")
def test_a_name_that_does_not_exist_is_an_error(repository):
    flags = (EXPLICIT, "--load-model=a", "--load-model=gone")
    with serving(repository, flags=flags, ready=False) as server:
        assert server.wait() == 1
    assert f"failed to load 'gone': Internal: there is no directory 'gone' in {repository}" in server.output
    assert "error: creating server: Internal - failed to load all models: 1 of 2 models are ready in " in server.output
    assert "s; failed, as said above: gone. " in server.output
    with serving(repository, flags=(*flags, "--exit-on-error=false"), ready=False) as server:
        server.wait_for(r"gone \| - +\| UNAVAILABLE: Internal: there is no directory")
        assert ready(server) == ["a"]
        assert server.get("/v2/health/ready").status == 400


def test_mode_none_loads_everything_once(tmp_path):
    write_model(tmp_path, "a", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--model-control-mode=none",)) as server:
        write_model(tmp_path, "b", IDENTITY, identity_config())
        assert ready(server) == ["a"]


def test_files_given_with_a_load_do_not_stay(tmp_path, monkeypatch):
    """Neither after an orderly end nor, once another server starts, after a sudden one."""
    rooms, repository = tmp_path / "cache" / "pybackend" / "rooms", tmp_path / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_laboratory(repository)
    flags = (EXPLICIT, "--load-model=laboratory", "--allow-model-overrides")
    with serving(repository, flags=flags) as server:
        assert laboratory(server)(LOAD_NEW).status == 200
        assert len(list(rooms.glob("*/*/new/1/model.py"))) == 1
        assert server.get("/v2/models/new/ready").status == 200
        assert server.stop() == 0
    assert list(rooms.iterdir()) == []
    with serving(repository, flags=flags) as server, serving(repository, flags=flags) as other:
        assert laboratory(server)(LOAD_NEW).status == laboratory(other)(LOAD_NEW).status == 200
        server.stop(signal.SIGKILL)
        assert len(list(rooms.iterdir())) == 2
        with serving(repository):
            wait_until(lambda: len(list(rooms.iterdir())) == 1, f"left: {list(rooms.iterdir())}")
        assert other.get("/v2/models/new/ready").status == 200
        assert len(list(rooms.glob("*/*/new/1/model.py"))) == 1
    assert list(rooms.iterdir()) == []


BROKEN = "raise ValueError('the weights are missing')"


@pytest.mark.spec("srv-R04")
@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.around("pybackend_tools")), "grpc"])
def test_a_model_that_has_failed_is_loaded_again_in_mode_none(tmp_path, capsys, protocol):
    write_model(tmp_path, "broken", BROKEN, identity_config())
    write_model(tmp_path, "well", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("1 of 2 models are ready")
        grpc = tritonclient.grpc.InferenceServerClient(server.grpc_url)

        def load(name, **more):
            if protocol == "grpc":
                try:
                    grpc.load_model(name, **more)
                except InferenceServerException as error:
                    return error.message()
                return ""
            files = [] if not more else [f"--config={tmp_path / 'config.json'}"]
            status = run(["load", name, f"--url={server.url}", *files])
            return capsys.readouterr().err if status else ""

        (tmp_path / "config.json").write_text("{}")
        write_model(tmp_path, "broken", IDENTITY, identity_config())
        for refused in (load("well"), load("nobody"), load("broken", config="{}")):
            assert "explicit model load / unload is not allowed" in refused
        assert load("broken") == ""
        assert server.get("/v2/models/broken/ready").status == 200
        assert server.get("/v2/health/ready").status == 200
        assert "Only a model that has failed may be loaded again" in load("broken")
        grpc.close()
