"""Servers whose models lie in cloud storage: a server that speaks S3 in a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pybackend.cli.commands import run
from tests.support.gates import wait_until
from tests.support.repositories import PREAMBLE, write_model
from tests.support.s3_server import CREDENTIALS, Gate, S3Server, s3_server
from tests.support.server import ServerProcess, serving

TENSORS = """
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CONFIG = 'backend: "python"' + TENSORS
CODE = """
import os
class TritonPythonModel:
    def initialize(self, args):
        self.text = open(os.path.join(args["model_repository"], args["model_version"], "text")).read()
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([self.text], np.object_))]) for _ in requests]
"""
STEP = 'model_name: "part" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }'
ENSEMBLE = f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ step [ {{ {STEP} }} ] }}'


@pytest.fixture(scope="module")
def storage():
    with s3_server() as server:
        yield server


def put_model(storage: S3Server, prefix: str, name: str, versions: dict[int, str], more: str = "") -> None:
    storage.put(f"{prefix}/{name}/config.pbtxt", CONFIG + more)
    for version, text in versions.items():
        storage.put(f"{prefix}/{name}/{version}/text", text)
        storage.put(f"{prefix}/{name}/{version}/model.py", PREAMBLE + CODE)


IN = {"name": "IN", "datatype": "INT32", "shape": [1], "data": [0]}


def text_of(server: ServerProcess, model: str, version: str = "") -> str:
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    reply = server.request("POST", f"{path}/infer", {"inputs": [IN]})
    assert reply.status == 200, reply
    return reply.json["outputs"][0]["data"][0]


def control(server: ServerProcess, model: str, action: str, body: dict[str, object] | None = None) -> str:
    reply = server.request("POST", f"/v2/repository/models/{model}/{action}", body or {})
    return "" if reply.status == 200 else f"{reply.status} {reply.error}"


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **CREDENTIALS, **more}


@pytest.mark.spec("srv-R27")
def test_models_are_loaded_on_request_as_from_a_directory(storage, tmp_path):
    """Index, load, version policies, reload, failed reload, unload, an ensemble, and a local repository beside it."""
    put_model(storage, "explicit", "one", {1: "1", 2: "2"})
    put_model(storage, "explicit", "all", {3: "3", 4: "4"}, " version_policy { all {} }")
    put_model(storage, "explicit", "part", {1: "of the whole"})
    put_model(storage, "explicit", "here", {1: "twice"})
    storage.put("explicit/whole/config.pbtxt", ENSEMBLE)
    storage.put("explicit/whole/1/", "")
    storage.put("explicit/README.md", "no model")
    write_model(tmp_path / "local", "here", CODE, CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=one")
    mounted = environment(TRITON_AWS_MOUNT_DIRECTORY=str(tmp_path / "mounted"))
    with serving(tmp_path / "local", storage.url("explicit/"), flags=flags, env=mounted) as server:
        index = {
            row["name"]: row.get("state", row.get("reason", ""))
            for row in server.request("POST", "/v2/repository/index").json
        }
        assert index == {"all": "", "here": "UNAVAILABLE", "one": "READY", "part": "", "whole": ""}
        assert text_of(server, "one") == "2"
        assert "two or more repositories" in control(server, "here", "load")

        assert control(server, "all", "load") == ""
        assert [text_of(server, "all", version) for version in ("3", "4")] == ["3", "4"]
        assert control(server, "whole", "load") == ""
        assert text_of(server, "whole") == "of the whole"

        storage.put("explicit/one/3/model.py", PREAMBLE + "raise ValueError('no good')")
        assert "no good" in control(server, "one", "load")
        assert text_of(server, "one") == "2"
        storage.put("explicit/one/3/model.py", PREAMBLE + CODE)
        storage.put("explicit/one/3/text", "3")
        assert control(server, "one", "load") == ""
        assert text_of(server, "one") == "3"
        specific = {
            "backend": "python",
            "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
            "version_policy": {"specific": {"versions": [1]}},
        }
        assert control(server, "one", "load", {"parameters": {"config": json.dumps(specific)}}) == ""
        assert text_of(server, "one") == "1"

        assert control(server, "part", "unload") == ""
        server.wait_for("successfully unloaded 'part' version 1")
        assert "there is no directory 'none' in " in control(server, "none", "load")
        assert storage.url("explicit") in control(server, "none", "load")
        (rooms,) = (tmp_path / "mounted" / "pybackend" / "rooms").iterdir()
    assert not rooms.exists()
    assert list((tmp_path / "mounted" / "pybackend" / "objects").rglob("*.lock"))


@pytest.mark.spec("srv-R27")
def test_polling_follows_the_bucket(storage, tmp_path):
    """Changed, new and removed models, without a local change; a bad one leaves the others alone."""
    put_model(storage, "poll", "one", {1: "before"})
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", f"--repository-cache-directory={tmp_path}")
    with serving(storage.url("poll"), flags=flags, env=environment()) as server:
        assert text_of(server, "one") == "before"
        storage.put("poll/one/1/text", "after")
        put_model(storage, "poll", "two", {7: "new"})
        server.wait_for("successfully loaded 'two' version 7")
        server.wait_for("successfully unloaded 'one' version 1")
        assert [text_of(server, "one"), text_of(server, "two")] == ["after", "new"]
        for name in ("config.pbtxt", "7/text", "7/model.py"):
            storage.delete(f"poll/two/{name}")
        server.wait_for("successfully unloaded 'two' version 7")
        assert text_of(server, "one") == "after"


def test_a_bucket_that_does_not_answer_delays_no_other_repository(storage, tmp_path):
    """Local models change, appear and disappear meanwhile; its own are as before, and are followed once it answers."""
    put_model(storage, "silent", "far", {1: "before"})
    local = tmp_path / "local"

    def write_near(name, text):
        model = write_model(local, name, CODE, CONFIG)
        (model / "1" / "text").write_text(text)
        return model

    write_near("near", "before")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", f"--repository-cache-directory={tmp_path / 'c'}")
    with closing(Gate(storage)) as gate, serving(local, gate.url("silent"), flags=flags, env=environment()) as server:
        gate.answers.clear()
        assert gate.waits.wait(60)
        write_near("near", "after")
        new = write_near("new", "new")
        server.wait_for("successfully loaded 'new' version 1")
        wait_until(lambda: text_of(server, "near") == "after", "the changed local model")
        shutil.rmtree(new)
        server.wait_for("successfully unloaded 'new' version 1")
        assert text_of(server, "far") == "before"
        assert server.get("/v2/health/ready").status == 200
        storage.put("silent/far/1/text", "after")
        gate.answers.set()
        wait_until(lambda: text_of(server, "far") == "after", "the changed model of the bucket", deadline_s=60)


@pytest.mark.thorough
def test_a_bucket_that_is_away_blinds_nobody(tmp_path, capsys):
    """While it hangs, the index, status and top answer from the last listing; once it is gone, a server starts from its
    cache."""
    flags = ("--model-control-mode=explicit", "--load-model=whole", f"--repository-cache-directory={tmp_path}")
    with s3_server() as storage:
        url = storage.url("away")
        answers, reason = f'pybackend_repository_answers{{repository="{url}"}}', f"{url} has not answered for 2 s"
        put_model(storage, "away", "part", {1: "1"})
        put_model(storage, "away", "two", {1: "2"})
        storage.put("away/whole/config.pbtxt", ENSEMBLE)
        storage.put("away/whole/1/", "")
        with serving(url, flags=flags, env=environment()) as server:
            assert server.metrics()[answers] == 1
            storage.process.send_signal(signal.SIGSTOP)
            part, two, whole = server.request("POST", "/v2/repository/index").json
            assert (part["name"], part["state"], part.get("reason", "")) == ("part", "READY", "")
            assert (whole["name"], whole["state"]) == ("whole", "READY")
            assert re.fullmatch(rf"as listed at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d: {reason}", two["reason"])
            assert (two["name"], two.get("state", "")) == ("two", "")
            assert run(["status", f"--url={server.url}"]) == 0
            assert reason in capsys.readouterr().out
            metrics_url = f"--metrics-url=http://127.0.0.1:{server.metrics_port}"
            assert run(["top", "--once", "--interval=0.01", f"--url={server.url}", metrics_url]) == 0
            assert ": 2 of 3 ready" in capsys.readouterr().out
            assert server.metrics()[answers] == 0
            storage.process.send_signal(signal.SIGCONT)
            wait_until(lambda: server.metrics()[answers] == 1, "the bucket to answer again")
            assert server.request("POST", "/v2/repository/index").json[1].get("reason", "") == ""
    with serving(url, flags=flags, env=environment()) as server:
        assert text_of(server, "whole") == "1"
        assert server.metrics()[answers] == 0
        assert server.metrics()[answers.replace("answers", "listed_timestamp_seconds")] > 0
        assert "The server starts with the models in its cache" in server.output
        assert "cannot be read: " in control(server, "two", "load")


def test_local_models_are_loaded_while_a_bucket_does_not_answer(storage, tmp_path):
    """Or refuses: a local model is no business of the bucket, unless that is known to have one of the same name."""
    put_model(storage, "absent", "far", {1: "far"})
    local = tmp_path / "local"
    (write_model(local, "near", CODE, CONFIG) / "1" / "text").write_text("before")
    write_model(local, "failing", "raise ValueError('no weights')", CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--repository-cache-directory")
    flags = (*flags[:-1], f"{flags[-1]}={tmp_path / 'c'}")
    with (
        closing(Gate(storage)) as gate,
        serving(local, gate.url("absent"), flags=flags, env=environment(), ready=False) as server,
    ):
        server.wait_for("2 of 3 models are ready")
        (local / "near" / "1" / "text").write_text("after a refusal")
        gate.refusal = (403, "AccessDenied")
        assert control(server, "near", "load") == ""
        assert text_of(server, "near") == "after a refusal"
        server.wait_for("does not say whether it has a model 'near', and is taken to have none")
        gate.refusal = None
        (local / "near" / "1" / "text").write_text("after silence")
        gate.answers.clear()
        assert control(server, "near", "load") == ""
        assert text_of(server, "near") == "after silence"
        assert "ValueError: no weights" in control(server, "failing", "load")
        gate.answers.set()
        put_model(storage, "absent", "near", {1: "far"})
        places = f"{local}/near, {gate.url('absent')}/near"
        assert f"model appears in two or more repositories: {places}" in control(server, "near", "load")


def test_a_missing_bucket_ends_the_start_with_one_sentence(storage, tmp_path):
    url = f"s3://{storage.host}/nowhere/models"
    run = subprocess.run(
        [sys.executable, "-m", "pybackend", "serve", url, f"--repository-cache-directory={tmp_path}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    sentence = f"{url} does not exist: there is no bucket 'nowhere' (NoSuchBucket)"
    assert (run.returncode, run.stderr) == (1, f"error: repository path is not a valid directory: {sentence}\n")


@pytest.mark.thorough
def test_the_doctor_examines_models_of_a_bucket(storage, tmp_path):
    put_model(storage, "doctor", "one", {1: "1"})
    run = subprocess.run(
        [sys.executable, "-m", "pybackend", "doctor", "--json", "--http-port=0", "--grpc-port=0", "--metrics-port=0",
         storage.url("doctor"), f"--repository-cache-directory={tmp_path}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    (row,) = [row for row in json.loads(run.stdout) if row["layer"] == "model 'one'"]
    assert row["status"] in {"ok", "warn"}, row
    assert not list(Path(tmp_path / "rooms").iterdir())
