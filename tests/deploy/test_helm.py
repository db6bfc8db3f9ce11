"""The Helm chart: its files by themselves, and, where there is a ``helm``, the manifests that it makes of them."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.support.command_line import serve_settings

CHART = Path(__file__).resolve().parents[2] / "deploy/helm/pybackend"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(not HELM, reason="there is no helm here")


# Without helm


def test_the_values_are_those_of_the_schema():
    jsonschema.validate(VALUES, SCHEMA)
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 1},
        {"replicas": "2"},
        {"repository": {"url": "ftp://host/models.tar"}},
        {"flags": {"HTTP_PORT": 1}},
        {"probes": {"model": "a/b"}},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**VALUES, **wrong}, SCHEMA)


@pytest.fixture
def archive(tmp_path):
    """An archive with a file, its URL and its SHA-256."""
    (tmp_path / "files/model/1").mkdir(parents=True)
    (tmp_path / "files/model/1/model.py").write_text("pass")
    (tmp_path / "served").mkdir()
    with tarfile.open(tmp_path / "served/models.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "files/model", "model")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        data = (tmp_path / "served/models.tar.gz").read_bytes()
        yield f"http://127.0.0.1:{server.server_port}/models.tar.gz", hashlib.sha256(data).hexdigest()
        server.shutdown()
        thread.join()


def fetch(*arguments):
    program = [sys.executable, CHART / "files/fetch.py", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


def test_the_archive_is_fetched_and_checked(archive, tmp_path):
    url, digest = archive
    for place, *sha256 in (("a",), ("b", ""), ("c", digest)):
        (tmp_path / place).mkdir()
        done = fetch(url, tmp_path / place, *sha256)
        assert (done.returncode, done.stderr) == (0, "")
        assert [each.name for each in (tmp_path / place).rglob("*")] == ["model", "1", "model.py"]
    (tmp_path / "d").mkdir()
    done = fetch(url, tmp_path / "d", "0" * 64)
    assert done.returncode == 1
    assert done.stderr == (
        f"the archive {url} has the SHA-256 {digest}, expected {'0' * 64}: correct repository.sha256\n"
    )
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "link/evil", "/tmp/evil"])
def test_an_archive_that_leads_out_writes_nothing_there(archive, tmp_path, name):
    link, file = tarfile.TarInfo("link"), tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    with tarfile.open(tmp_path / "served/models.tar.gz", "w:gz") as tar:
        tar.addfile(link)
        tar.addfile(file)
    (tmp_path / "inner").mkdir()
    assert fetch(archive[0], tmp_path / "inner").returncode == 1
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/evil").exists()


# With helm


def helm(command, *arguments):
    done = subprocess.run(
        [HELM, command, *arguments], capture_output=True, text=True, check=False, timeout=60, cwd=CHART.parent
    )
    return done.stdout, done.stderr


def manifests(tmp_path, **values):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    output, errors = helm("template", "mine", CHART.name, f"--values={file}")
    assert not errors, errors
    return {each["metadata"]["name"] + each["kind"]: each for each in yaml.safe_load_all(output) if each}


VARIANTS = {
    "as it is": {},
    "with everything": {
        "repository": {"url": "https://host/models.tar.gz", "sha256": "0" * 64, "path": "models"},
        "flags": {
            "model-control-mode": "explicit",
            "load-model": ["a", 'b "c"'],
            "http-max-input-size": 134217728,
            "log-access": True,
        },
        "env": [{"name": "PYBACKEND_LOG_FORMAT", "value": "json"}],
        "imagePullSecrets": [{"name": "secret"}],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "probes": {"model": "add_sub"},
    },
    "with TLS and keys": {
        "flags": {
            "http-use-ssl": True,
            "http-server-cert": "/etc/keys/tls.crt",
            "http-server-key": "/etc/keys/tls.key",
            "api-key-file": "/etc/keys/keys",
            "api-key-exempt": "health,metrics",
        },
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/etc/keys", "readOnly": True}],
    },
    "with less": {"disruptionBudget": {"enabled": False}, "resources": {}, "image": {"repository": "x", "tag": "7"}},
}


@needs_helm
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_chart_makes_manifests_that_kubernetes_accepts(values, tmp_path):
    made = manifests(tmp_path, **values)
    for manifest in made.values():
        if manifest["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    assert ("mineServiceMonitor" in made) == ("serviceMonitor" in values)
    assert ("minePodDisruptionBudget" in made) == ("disruptionBudget" not in values)
    pod = made["mineDeployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert made["mineService"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    mounted = {each["name"] for part in ("containers", "initContainers") for each in _mounts(pod, part)}
    assert mounted == {each["name"] for each in pod["spec"]["volumes"]}
    asked = "models/add_sub" if "probes" in values else "health"
    assert container["startupProbe"]["httpGet"]["path"] == f"/v2/{asked}/ready"
    schemes = {container[f"{name}Probe"]["httpGet"].get("scheme") for name in ("startup", "readiness", "liveness")}
    assert schemes == {"HTTPS" if "volumes" in values else None}


def _mounts(pod, part):
    return [mount for container in pod["spec"].get(part, ()) for mount in container["volumeMounts"]]


@needs_helm
def test_the_flags_become_a_configuration_file_that_the_server_reads(tmp_path):
    made = manifests(tmp_path, **VARIANTS["with everything"])
    text = made["mineConfigMap"]["data"]["pybackend.toml"]
    assert tomllib.loads(text)["load-model"] == ["a", 'b "c"']
    (tmp_path / "pybackend.toml").write_text(text)
    settings = serve_settings(["serve", f"--config-file={tmp_path}/pybackend.toml"])
    assert [str(path) for path in settings.repositories] == ["/models/models"]
    assert (settings.http.port, settings.grpc.port, settings.http.metrics_port) == (8000, 8001, 8002)
    assert settings.http.max_input_size_bytes == 134217728
    pod = made["mineDeployment"]["spec"]["template"]["spec"]
    waits = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert settings.models.exit_timeout_s + waits < pod["terminationGracePeriodSeconds"]
    assert "fetch.py" in made["mine-fetchConfigMap"]["data"]


@needs_helm
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("flags.http-port=1", "flags must not have http-port: use repository and ports"),
        ("repository.claim=", "repository needs a claim or a url: it says where the models are"),
        ("flags.exit-timeout-secs=55", "terminationGracePeriodSeconds must exceed preStopSeconds and the flag"),
        ("flags.api-key-file=/etc/keys", "probes have no key: with the flag api-key-file, add health to the flag"),
        ("flags.http-restricted-api=health:key=1", "probes send no header: take health out of the flag"),
        ("flags.http-use-ssl-mutual=true", "probes have no certificate: use the flag http-use-ssl without"),
        ("replica=1", "additional properties 'replica' not allowed"),
    ],
)
def test_the_chart_refuses_what_cannot_work(values, text):
    assert text in helm("template", "mine", CHART.name, f"--set={values}")[1]


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart():
    output, _ = helm("lint", CHART.name, "--strict")
    assert "1 chart(s) linted, 0 chart(s) failed" in output
