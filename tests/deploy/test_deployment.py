"""The files of ``deploy/``: valid by their formats' own schemas, and true to the server that they start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from pybackend.cli.command_line import parse_serve_flags
from tests.support.gates import wait_until
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import serving

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd/pybackend.service"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
HTTP, GRPC, METRICS = 8000, 8001, 8002


def manifests(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def deployment():
    (found,) = [each for each in manifests("pybackend.yaml") if each["kind"] == "Deployment"]
    return found


def pod():
    return deployment()["spec"]["template"]["spec"]


def container():
    (found,) = pod()["containers"]
    return found


@pytest.mark.parametrize("manifest", manifests("pybackend.yaml"), ids=lambda each: each["kind"])
def test_the_manifests_are_what_kubernetes_expects(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_a_slip_in_a_manifest_would_be_found():
    manifest = deployment()
    manifest["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_parts_of_the_deployment_find_each_other():
    documents = {each["kind"]: each for each in manifests("pybackend.yaml")}
    labels = deployment()["spec"]["template"]["metadata"]["labels"]
    assert deployment()["spec"]["selector"]["matchLabels"] == labels
    assert documents["Service"]["spec"]["selector"] == labels
    assert documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert {each["name"] for each in container()["volumeMounts"]} == {each["name"] for each in pod()["volumes"]}
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {"http": HTTP, "grpc": GRPC, "metrics": METRICS}
    assert {each["targetPort"]: each["port"] for each in documents["Service"]["spec"]["ports"]} == ports


def test_a_pod_outlives_the_servers_own_limit():
    settings = parse_serve_flags(container()["args"])
    waits = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert settings.models.exit_timeout_s + waits < pod()["terminationGracePeriodSeconds"]


def test_one_dead_model_does_not_withdraw_a_pod_and_a_broken_release_does_not_start():
    """In the manifest and in the chart."""
    settings = parse_serve_flags(container()["args"])
    values = yaml.safe_load((DEPLOY / "helm/pybackend/values.yaml").read_text())
    assert (settings.strict_readiness, values["flags"]["strict-readiness"]) == (False, False)
    assert settings.exit_on_error
    assert "exit-on-error" not in values["flags"]


@pytest.mark.e2e
def test_the_probes_of_the_pod_ask_what_the_server_answers(tmp_path):
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    flags = tuple(each for each in container()["args"] if each.startswith("--"))
    with serving(tmp_path, flags=flags) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server.get(container()[probe]["httpGet"]["path"]).status == 200, probe


@pytest.mark.e2e
def test_only_a_probe_that_names_a_model_tells_of_a_wrong_mount(tmp_path):
    with serving(tmp_path) as server:
        assert server.get("/v2/health/ready").status == 200
        assert server.get("/v2/models/identity/ready").status == 400


def test_the_runtime_of_kserve_starts_the_server_as_triton_is_started():
    (runtime,) = manifests("kserve-runtime.yaml")
    (server,) = runtime["spec"]["containers"]
    settings = parse_serve_flags(server["args"])
    assert [str(path) for path in settings.repositories] == ["/mnt/models"]
    assert ports_of(settings) == (8080, 9000, METRICS)
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(METRICS)
    # The pod's part of a runtime is Kubernetes' own.
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": {"containers": [server]}}
    kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)


def ports_of(settings):
    return settings.http.port, settings.grpc.port, settings.http.metrics_port


# The unit of systemd


def start_line():
    return re.search(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)[1]


def test_the_unit_starts_a_server():
    program, command, *arguments = shlex.split(start_line())
    assert (Path(program).name, command) == ("pybackend", "serve")
    settings = parse_serve_flags(arguments)
    limit = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)[1])
    assert settings.models.exit_timeout_s < limit


def test_a_reload_of_the_unit_ends_no_server(tmp_path):
    """Even if the server has nothing to read again: no file of the log, no certificates, no keys."""
    reload = re.search(r"^ExecReload=(.+)$", UNIT.read_text(), re.MULTILINE)[1]
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    command = [sys.executable, "-m", "pybackend", "serve", str(tmp_path), *ports]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said = ""
        for reloaded, end in ((False, "Started Metrics Service"), (True, "to read again")):
            if reloaded:
                subprocess.run(shlex.split(reload.replace("$MAINPID", str(server.pid))), check=True, timeout=60)
            for line in server.stdout:
                said += line
                if end in line:
                    break
        assert "Signal (1) received: there is no log file, certificate or key to read again." in said
        assert server.poll() is None, said
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0


LOGROTATE = DEPLOY / "logrotate/pybackend"


def test_the_rotation_fits_the_unit():
    text, unit = LOGROTATE.read_text(), UNIT.read_text()
    (log,) = re.findall(r"--log-file=(\S+\.log)", unit)
    assert Path(log).match(re.search(r"^(/\S+) {$", text, re.MULTILINE)[1])
    assert Path(log).parent == Path("/var/log") / re.search(r"^LogsDirectory=(.+)$", unit, re.MULTILINE)[1]
    assert re.search(r"^ +systemctl reload (.+)$", text, re.MULTILINE)[1] == UNIT.stem
    user = re.search(r"^User=(.+)$", unit, re.MULTILINE)[1]
    assert re.search(r"^ +su (.+)$", text, re.MULTILINE)[1] == f"{user} {user}"


@pytest.mark.skipif(not shutil.which("logrotate"), reason="there is no logrotate here")
@pytest.mark.e2e
def test_logrotate_moves_the_file_and_the_server_goes_on_in_a_new_one(tmp_path):
    log = tmp_path / "server.log"
    write_model(tmp_path / "models", "identity", IDENTITY, identity_config())
    with serving(tmp_path / "models", flags=(f"--log-file={log}",), ready=False) as server:
        wait_until(lambda: log.exists() and "Started HTTPService" in log.read_text(), "the server has not started")
        text = LOGROTATE.read_text().replace("/var/log/pybackend", str(tmp_path))
        text = re.sub(
            r"systemctl .+", f"kill -HUP {server.process.pid}", re.sub(r"^ +su .+$", "", text, flags=re.MULTILINE)
        )
        (tmp_path / "rotation").write_text(text)
        command = ["logrotate", "--force", f"--state={tmp_path / 'state'}", str(tmp_path / "rotation")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        wait_until(lambda: log.exists() and log.stat().st_size, "the server has not opened a new file")
        assert "Started HTTPService" in (tmp_path / "server.log.1").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    program = tmp_path / "pybackend"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(shlex.split(start_line())[0], str(program)))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


# The container


def test_the_image_is_built_from_what_it_copies(tmp_path):
    for line in re.findall(r"^COPY (?!--)(.+)$", CONTAINERFILE, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = tmp_path / target / ("" if (ROOT / source).is_dir() else source)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.stat().st_size > 100_000


def test_the_image_runs_without_root_and_serves():
    assert re.search(r"^USER 1000$", CONTAINERFILE, re.MULTILINE)
    assert re.search(r"^EXPOSE (.+)$", CONTAINERFILE, re.MULTILINE)[1].split() == [str(HTTP), str(GRPC), str(METRICS)]
    entry = yaml.safe_load(re.search(r"^ENTRYPOINT (.+)$", CONTAINERFILE, re.MULTILINE)[1])
    arguments = yaml.safe_load(re.search(r"^CMD (.+)$", CONTAINERFILE, re.MULTILINE)[1])
    assert entry == ["pybackend", "serve"]
    settings = parse_serve_flags(arguments)
    assert ports_of(settings) == (HTTP, GRPC, METRICS)
    assert [os.fspath(path) for path in settings.repositories] == ["/models"]
