"""``pybackend doctor``: what it finds on a machine that has all, and on machines that lack something."""

import json
import os
import re
import shutil
import site
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.hosts import OTHER_UID, ROOT_DIRECTORY, parameters, public_directory, public_python
from tests.support.laboratory import write_laboratory
from tests.support.machine import without_gpu
from tests.support.python_builds import python_built_with
from tests.support.repositories import write_model
from tests.support.server import ServerProcess
from tests.support.warm_start import run_command

LAYERS = [
    "python", "kernel", "open files", "processes", "shared memory", "front ends", "model processes", "zygote", "sandbox",
    "environment cache", "packing", "gpu",
]  # fmt: skip


def doctor(*arguments, before="", python=sys.executable, **variables):
    """Run it, after some lines of Python in the same process."""
    environment = {**os.environ, **variables}
    if not before and python == sys.executable:
        return run_command("doctor", *arguments, timeout=55, env=environment)
    code = f"import sys\n{before}\nfrom pybackend.cli import main\nsys.exit(main())"
    return subprocess.run(
        [python, "-c", code, "doctor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
        env=environment,
    )


def rows(*arguments, before="", python=sys.executable, **variables):
    """The exit status, and the findings by their layer."""
    done = doctor("--json", *arguments, before=before, python=python, **variables)
    assert done.stderr == ""
    return done.returncode, {row["layer"]: row for row in json.loads(done.stdout)}


def test_more_front_ends_than_cores_are_a_warning():
    _, found = rows("--front-ends=64")
    assert found["front ends"]["status"] == ("warn" if len(os.sched_getaffinity(0)) <= 64 else "ok")
    assert found["front ends"]["found"].startswith("64; cores: ")


def test_every_layer_has_a_row(tmp_path):
    status, found = rows(f"--environment-cache-directory={tmp_path / 'not' / 'there'}")
    assert list(found) == LAYERS
    assert status == 0
    assert all(row["status"] in {"ok", "warn"} for row in found.values()), found
    assert all(bool(row["advice"]) == (row["status"] != "ok") for row in found.values()), found
    assert found["python"]["found"].endswith(sys.executable)
    assert found["model processes"]["found"].startswith(f"Python {sys.version.split()[0]}, numpy ")
    assert list(tmp_path.iterdir()) == [], "it has changed something"


@pytest.mark.parametrize(
    ("arguments", "is_optimised"),
    [("'--enable-shared'", False), ("'--enable-optimizations' '--with-lto'", True)],
)
def test_how_the_interpreter_was_built(tmp_path, arguments, is_optimised):
    """In the row of Python, and in the log as a server starts."""
    python = python_built_with(arguments, tmp_path / "python")
    _, found = rows(python=python)
    row = found["python"]
    assert (row["status"], bool(row["advice"])) == (("ok", False) if is_optimised else ("warn", True)), row
    assert (" built without optimisations, " in row["found"]) is not is_optimised
    (tmp_path / "models").mkdir()
    server = ServerProcess([tmp_path / "models"], python=[str(python)])
    try:
        server.wait_for("Started HTTPService")
    finally:
        server.stop()
    assert ("this CPython was built without optimisations: each request takes" in server.output) is not is_optimised
    if not is_optimised:
        assert row["advice"] in server.output
        assert "--enable-optimizations" in row["advice"]


def test_for_people(snapshot):
    done = doctor()
    *lines, verdict = done.stdout.splitlines()
    starts = [line for line in lines if not line.startswith(" ")]
    assert [layer_of(line) for line in starts] == LAYERS
    assert {line.index(layer_of(line)) for line in starts} == {6}
    column = starts[0].index("pybackend ")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines), (
        "the columns are not aligned"
    )
    assert verdict == snapshot


def layer_of(line):
    """The second column."""
    return re.split(r"  +", line)[1]


@pytest.mark.thorough
def test_few_descriptors(tmp_path):
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))"
    status, found = rows(before=limit.format(300))
    assert (status, found["open files"]["status"]) == (0, "warn")
    assert "ulimit -Hn 65536" in found["open files"]["advice"]
    status, found = rows(before=limit.format(100))
    assert (status, found["open files"]["status"]) == (1, "fail")
    assert "model processes" not in found  # there would be no telling what is to blame


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users away")
def test_its_own_files_are_in_nobodys_way():
    """A server of this user and Python would give its models users of their own; so does the trial."""
    public = public_directory()
    try:
        _, found = rows(python=public_python(public), XDG_CACHE_HOME=str(public / "cache"))
    finally:
        shutil.rmtree(public)
    assert "other users cannot" not in found["sandbox"]["found"], found["sandbox"]
    assert "it runs as a separate user" not in found["sandbox"]["advice"]


def test_a_cache_that_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    status, found = rows(f"--environment-cache-directory={tmp_path / 'file' / 'cache'}")
    assert (status, found["environment cache"]["status"]) == (1, "fail")
    assert "--environment-cache-directory" in found["environment cache"]["advice"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o555)
    status, found = rows(f"--environment-cache-directory={tmp_path / 'cache'}")
    assert (status, found["environment cache"]["status"]) == (1, "fail")


def test_a_python_that_cannot_run_models(tmp_path):
    """The host has numpy; the process does not find it."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    fake.chmod(0o755)
    status, found = rows(before=f"sys.executable = {str(fake)!r}")
    assert (status, found["model processes"]["status"]) == (1, "fail")
    assert "exited with status 3" in found["model processes"]["found"]
    assert "zygote" not in found


def test_wrong_usage():
    done = doctor("--jsno")
    assert done.returncode == 1
    assert "--jsno" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_is_in_the_help():
    done = subprocess.run([sys.executable, "-m", "pybackend", "--help"], capture_output=True, text=True, check=False)
    assert "doctor" in done.stdout


def test_the_page_has_a_line_for_every_row():
    page = (Path(__file__).parents[2] / "docs/operators/commands.md").read_text()
    shown = [layer_of(line) for line in page.splitlines() if line.startswith(("ok ", "warn "))]
    assert shown == [*LAYERS, "HTTP port", "GRPC port", "Metrics port", "model 'resnet'"]


FREE_PORTS = ("--http-address=127.0.0.1", "--http-port=0", "--grpc-port=0", "--metrics-port=0")


class TestRepositories:
    """With a repository it does what the server does at its start, short of running code of the models."""

    def test_what_would_be_served(self, tmp_path):
        write_laboratory(
            tmp_path,
            "two",
            extra='instance_group { kind: KIND_CPU count: 2 } parameters { key: "SANDBOX" value '
            '{ string_value: "off" } }',
        )
        (tmp_path / "two" / "1" / "model.py").write_text("raise SystemExit('code of the model has run')")
        done = doctor(str(tmp_path), *FREE_PORTS)
        assert done.returncode == 0, done
        assert done.stderr == ""
        assert done.stdout.splitlines()[-1] == "serve would work: 1 model on 127.0.0.1:(a free port)"
        status, found = rows(str(tmp_path), *FREE_PORTS)
        assert (status, list(found)) == (0, [*LAYERS, "HTTP port", "GRPC port", "Metrics port", "model 'two'"])
        assert found["model 'two'"] == {
            "layer": "model 'two'",
            "status": "ok",
            "found": "version 1: 2 processes on the server's Python; sandbox off",
            "advice": "",
        }
        assert "2 processes of models take 10" in found["open files"]["found"]

    @without_gpu
    def test_a_model_for_a_gpu_that_is_not_there(self, tmp_path):
        write_laboratory(tmp_path, "vision", extra="instance_group { kind: KIND_GPU }")
        refused, found = rows(str(tmp_path), *FREE_PORTS)
        row = found["model 'vision'"]
        assert (refused, row["status"]) == (1, "fail")
        assert (
            "instance group vision_0 of model vision has kind KIND_GPU but server does not support GPUs. This machine has no NVIDIA "
            "driver: there is no /dev/nvidiactl. Set kind: KIND_CPU, or start the server with --gpu-models=cpu."
        ) in row["advice"]
        moved, found = rows(str(tmp_path), "--gpu-models=cpu", *FREE_PORTS)
        assert (moved, found["model 'vision'"]["status"]) != (1, "fail")

    def test_what_would_fail_has_the_servers_words(self, tmp_path, snapshot):
        write_model(tmp_path, "text", "", 'backend: "python" inptu { }')
        write_model(tmp_path, "nowhere", "", 'backend: "python"' + parameters(EXECUTION_ENV_PATH="/nowhere/at/all"))
        write_model(tmp_path, "codeless", None, 'backend: "python"')
        (tmp_path / "codeless" / "1").mkdir(parents=True, exist_ok=True)
        write_model(tmp_path, "parts", None, PARTS)
        status, found = rows(str(tmp_path), *FREE_PORTS)
        models = {name: row for name, row in found.items() if name.startswith("model '")}
        assert status == 1
        assert {row["status"] for row in models.values()} == {"fail"}
        assert (
            doctor(str(tmp_path), *FREE_PORTS)
            .stdout.splitlines()[-1]
            .startswith("serve would fail: model 'codeless', ")
        )
        server = ServerProcess([tmp_path], "--exit-on-error=false")
        try:
            for name in ("text", "nowhere", "codeless"):
                said = server.wait_for(
                    rf"failed to load '{name}'.*?: (?:Internal|Invalid argument|Unavailable): (.*)\""
                )[1]
                assert models[f"model '{name}'"]["advice"] == said.replace('\\"', '"')
        finally:
            server.stop()
        assert models["model 'parts'"]["advice"] == snapshot

    @pytest.mark.thorough
    def test_a_model_that_need_not_be_loaded_is_no_failure(self, tmp_path, snapshot):
        write_laboratory(tmp_path, "fine")
        write_model(tmp_path, "text", "", 'backend: "python" inptu { }')
        for flag in ("--exit-on-error=false", "--model-control-mode=explicit"):
            status, found = rows(str(tmp_path), *FREE_PORTS, flag)
            assert (status, found["model 'text'"]["status"]) == (0, "warn")
        done = doctor(str(tmp_path), *FREE_PORTS, "--exit-on-error=false")
        assert done.stdout.splitlines()[-1] == snapshot

    def test_advice_is_given_once_and_commands_stay_whole(self, tmp_path):
        for name in ("one", "two"):
            write_laboratory(tmp_path, name)
        text = doctor(str(tmp_path), *FREE_PORTS).stdout
        assert all(line.count("`") % 2 == 0 for line in text.splitlines()), text
        if "layer 'neighbours'" not in text:
            pytest.skip("temporary files do not lie below /tmp here")
        assert text.count("layer 'neighbours'") == 1
        assert text.count("(see above)") == 1

    def test_a_port_that_is_taken(self, tmp_path):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            status, found = rows(
                str(tmp_path), "--http-address=127.0.0.1", f"--http-port={port}", "--grpc-port=0", "--metrics-port=0"
            )
        assert (status, found["HTTP port"]["status"], found["Metrics port"]["status"]) == (1, "fail", "ok")
        assert f"Socket '127.0.0.1:{port}' already in use. Stop the program" in found["HTTP port"]["advice"]
        assert found["repository"]["found"] == f"no model in {tmp_path}"

    @pytest.mark.thorough
    def test_files_that_flags_name(self, tmp_path, snapshot):
        """They are read as the server reads them, and a file of the log is not made."""
        keys, log = tmp_path / "keys", tmp_path / "server.log"
        keys.write_text("0123456789abcdef\n")
        keys.chmod(0o644)
        (tmp_path / "models").mkdir()
        arguments = (str(tmp_path / "models"), *FREE_PORTS)
        status, found = rows(*arguments, f"--api-key-file={keys}", f"--log-file={log}")
        assert (status, found["log file"]) == (
            0,
            {"layer": "log file", "status": "ok", "found": f"{log} can be written", "advice": ""},
        )
        assert (found["API keys"]["status"], log.exists()) == ("warn", False)
        assert found["API keys"]["advice"].endswith("`chmod o-r` it.")
        tls = ("--grpc-use-ssl", "--grpc-server-cert=none.pem", "--grpc-server-key=none.key")
        files = (f"--api-key-file={tmp_path}/none", f"--log-file={tmp_path}/none/server.log", *tls)
        status, found = rows(*arguments, *files)
        assert (status, found["API keys"]["advice"]) == (
            1,
            f"--api-key-file {tmp_path}/none cannot be read: No such file or directory",
        )
        assert found["log file"]["found"] == f"{tmp_path}/none/server.log cannot be written"
        assert found["GRPC certificates"]["advice"] == snapshot

    def test_a_repository_that_is_not_there(self, tmp_path):
        status, found = rows(str(tmp_path / "none"), *FREE_PORTS)
        assert (status, found["repository"]["status"]) == (1, "fail")
        assert found["repository"]["advice"].endswith("it does not exist")

    def test_what_an_environment_has(self, tmp_path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "environment")], check=True)
        packages = next((tmp_path / "environment" / "lib").glob("python3*/site-packages"))
        (packages / "more.pth").write_text("\n".join(site.getsitepackages()))
        write_laboratory(tmp_path / "models", "m", extra=parameters(EXECUTION_ENV_PATH=str(tmp_path / "environment")))
        _, found = rows(str(tmp_path / "models"), *FREE_PORTS)
        version = ".".join(sys.version.split()[0].split(".")[:2])
        assert f"1 process on Python {version}" in found["model 'm'"]["found"]
        assert f", {tmp_path}/environment; sandbox standard" in found["model 'm'"]["found"]

    @pytest.mark.thorough
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
    def test_files_that_are_closed_to_the_models(self):
        """Root is told what the server would say; the owner, an ordinary user, is served without a warning."""
        public = public_directory()
        try:
            home = public / "home"
            write_laboratory(home / "models", "m")
            for path in (home, *home.rglob("*")):
                os.chown(path, OTHER_UID, OTHER_UID)
            home.chmod(0o700)
            python = public_python(public)
            status, found = rows(str(home / "models"), *FREE_PORTS, python=python, XDG_CACHE_HOME=str(public / "cache"))
            assert (status, found["model 'm'"]["status"]) == (1, "fail")
            assert f"sudo -u '#{OTHER_UID}' pybackend serve {home}/models" in found["model 'm'"]["advice"]
            done = subprocess.run(
                [python, "-m", "pybackend", "doctor", "--json", str(home / "models"), *FREE_PORTS],
                capture_output=True,
                text=True,
                check=False,
                timeout=55,
                user=OTHER_UID,
                group=OTHER_UID,
                extra_groups=[],
                cwd=ROOT_DIRECTORY,
                env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
            )
            assert (done.returncode, done.stderr) == (0, "")
            found = {row["layer"]: row for row in json.loads(done.stdout)}
            assert found["model 'm'"]["status"] == "ok", found
            assert "uid" not in found["sandbox"]["found"]
            assert "share this user" in found["sandbox"]["found"]
        finally:
            shutil.rmtree(public)


PARTS = """
platform: "ensemble"
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step { model_name: "absent" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }
"""


def test_a_running_server_is_recognised_by_its_ports(tmp_path, whole_starts):
    server = ServerProcess([tmp_path], "--sandbox=off")
    try:
        port = server.port
        status, found = rows("--http-address=127.0.0.1", f"--http-port={port}", "--grpc-port=0", str(tmp_path))
    finally:
        server.stop()
    assert status == 1
    assert found["HTTP port"]["found"].startswith(
        f"127.0.0.1:{port} belongs to a running pybackend, process {server.process.pid}, `pybackend serve --model-repository="
    )
    assert "--http-port" in found["HTTP port"]["advice"]
