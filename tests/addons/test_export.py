"""``pybackend export k8s``: valid by the schemas of Kubernetes, KEDA and the Prometheus operator, and true to the
server."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from pybackend.cli.command_line import parse_serve_flags
from pybackend_addons.ray.cluster import cluster_of
from pybackend_addons.ray.kubernetes import Deployment, Load, objects
from tests.addons.command_line import ray_settings
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.warm_start import run_command

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs/operators/observe/dashboard.json"
NODE_MODULES = ROOT / "tests/deploy/node_modules"
CUSTOM = {"ScaledObject", "PodMonitor"}
"""Kinds that are not Kubernetes' own."""

PICKY = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("not these numbers")
"""


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "models", "m", IDENTITY, identity_config())
    return tmp_path / "models"


def export(*arguments, form="k8s"):
    return run_command("export", form, *map(str, arguments), timeout=120)


def documents_of(*arguments, form="k8s"):
    ended = export(*arguments, form=form)
    assert ended.returncode == 0, ended.stderr
    return list(yaml.safe_load_all(ended.stdout))


def only(documents, kind):
    (found,) = [each for each in documents if each["kind"] == kind]
    return found


def test_the_manifest_is_what_the_command_writes(repository):
    """But for its comments."""
    manifest = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/pybackend.yaml").read_text()))
    assert documents_of(repository) == manifest


def test_all_objects_are_what_their_projects_expect(repository):
    everything = (
        "--most-replicas=8",
        "--prometheus=http://prometheus:9090",
        "--pod-monitor",
        f"--dashboard={DASHBOARD}",
    )
    documents = documents_of(repository, *everything)
    documents += documents_of(repository, "--most-replicas=3")
    kinds = [each["kind"] for each in documents]
    assert (
        set(kinds)
        == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap", "HorizontalPodAutoscaler"}
        | CUSTOM
    )
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    assert "replicas" not in only(documents[:7], "Deployment")["spec"]
    assert json.loads(only(documents, "ConfigMap")["data"]["pybackend.json"]) == json.loads(DASHBOARD.read_text())


@pytest.mark.skipif(
    not (NODE_MODULES / ".installed").exists() or not shutil.which("node"), reason="needs npm's packages"
)
def test_custom_objects_are_what_their_projects_expect():
    wanted = Deployment(
        "ocr", "image", "/models", "models", most_replicas=4, prometheus_url="http://p:9090", pod_monitor=True
    )
    documents = [each for each in objects(wanted) if each["kind"] in CUSTOM]
    assert [each["kind"] for each in documents] == ["ScaledObject", "PodMonitor"]
    assert validated(documents) == (0, "ScaledObject\nPodMonitor\n")
    documents[1]["spec"]["podMetricsEndpoints"][0]["interval"] = 15
    status, _ = validated(documents)
    assert status != 0


def validated(documents):
    program = ROOT / "tests/deploy/custom_objects.mjs"
    ended = subprocess.run(
        ["node", program], input=json.dumps(documents), capture_output=True, text=True, check=False, timeout=120
    )
    return ended.returncode, ended.stdout


def test_the_pod_runs_the_flags_that_were_given(repository):
    (container,) = only(documents_of(repository, "--", "--sandbox=strict"), "Deployment")["spec"]["template"]["spec"][
        "containers"
    ]
    settings = parse_serve_flags(container["args"])
    assert [str(path) for path in settings.repositories] == ["/models"]
    assert (settings.sandbox.level, settings.strict_readiness) == ("strict", False)


TLS = ("--http-use-ssl=true", "--http-server-cert=/tls/c", "--http-server-key=/tls/k")


@pytest.mark.parametrize(
    ("flags", "way_out"),
    [
        (("--api-key-file=/keys/keys",), "add health to --api-key-exempt"),
        (("--api-key-file=/keys/keys", "--api-key-exempt=health"), "--secret-mount NAME=/keys"),
        (TLS, "--secret-mount NAME=/tls"),
        ((*TLS, "--http-use-ssl-mutual=true"), "without --http-use-ssl-mutual"),
        (("--http-address=127.0.0.1",), "--http-address=127.0.0.1: leave it out"),
        (("--grpc-address=127.0.0.1",), "--grpc-address=127.0.0.1: leave it out"),
        (("--allow-http=false",), "serve it with --allow-http=true"),
        (("--http-restricted-api=health:k=v",), "take health out of --http-restricted-api"),
    ],
)
def test_flags_with_which_no_pod_would_become_ready_are_refused(repository, flags, way_out):
    ended = export(repository, "--", *flags)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert way_out in ended.stderr


def test_mounted_secrets_hold_the_keys_and_certificates_and_probes_use_tls(repository):
    mounts = ("--secret-mount=ocr.keys=/keys", "--secret-mount=ocr-tls=/tls")
    keys = ("--api-key-file=/keys/keys", "--api-key-exempt=health")
    document = only(documents_of(repository, *mounts, "--", *TLS, *keys), "Deployment")
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    pod = document["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert [each["scheme"] for each in probes] == ["HTTPS"] * 3
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    mounted = {secrets.get(each["name"]): each["mountPath"] for each in container["volumeMounts"]}
    assert (mounted["ocr.keys"], mounted["ocr-tls"]) == ("/keys", "/tls")


def test_a_server_without_metrics_has_no_port_for_them(repository):
    text = export(repository, "--", "--allow-metrics=false").stdout
    assert "8000" in text
    for word in ("8002", "prometheus.io", "port: metrics", "name: metrics"):
        assert word not in text


def test_models_in_cloud_storage_need_no_volume():
    deployment = only(documents_of("s3://bucket/models", "--credentials=keys"), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == "s3://bucket/models"
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert "models" not in [each["name"] for each in pod["volumes"]]


def test_resources_come_from_a_measured_load(repository):
    write_model(repository, "picky", PICKY, identity_config())
    ended = export(repository, "--measure")
    assert ended.returncode == 0, ended.stderr
    assert "random requests are refused by picky" in ended.stderr
    (container,) = only(yaml.safe_load_all(ended.stdout), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"].endswith("m")
    assert container["resources"]["requests"]["memory"].endswith("Mi")


def test_the_configuration_of_ray_serve_makes_the_same_application(repository):
    flags = ("--target-waiting=0.5", "--replica-gpus=0.5", "--http-port=81", "--sandbox=strict", "--scale-down-secs=9")
    keys = repository.parent / "keys"
    keys.write_text("a-long-enough-secret\n")
    access = (f"--api-key-file={keys}", "--api-key-exempt=health,metrics")
    (document,) = documents_of(repository, "--replicas=2", "--most-replicas=8", "--", *flags, *access, form="ray")
    (application,) = document["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(import_module(module), name))
    assert document["proxy_location"] == "Disabled"
    wanted = ray_settings(
        ["serve", str(repository), "--on=ray", "--replicas=2..8", "--http-address=0.0.0.0", *flags, *access]
    )
    found = cluster_of(application["args"].pop("model_repository"), **application["args"])
    assert replace(found, directory=wanted.directory) == wanted


def test_a_rayservice_has_pods_that_kubernetes_knows(repository):
    """Its own fields have no schema in a package: those of KubeRay 1.5 are as the documentation of that project has
    them."""
    everything = ("--most-replicas=8", "--pod-monitor", f"--dashboard={DASHBOARD}", "--image=registry/own")
    documents = documents_of(repository, *everything, form="kuberay")
    assert [each["kind"] for each in documents] == ["RayService", "PodMonitor", "ConfigMap"]
    spec = documents[0]["spec"]
    cluster = spec["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    head = cluster["headGroupSpec"]
    for group in (head, workers):
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "p"}, "template": group["template"]}
        kubernetes_validate.validate(pods, kubernetes_validate.latest_version(), strict=True)
    service = {"apiVersion": "v1", "kind": "Service", **spec["serveService"]}
    kubernetes_validate.validate(service, kubernetes_validate.latest_version(), strict=True)
    assert (workers["minReplicas"], workers["maxReplicas"]) == (2, 9)
    assert cluster["authOptions"] == {"mode": "token"}
    monitored = only(documents, "PodMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored == head["template"]["metadata"]["labels"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert cluster_of(application["args"].pop("model_repository"), **application["args"]).max_replicas == 8


def test_reserved_resources_have_room():
    def resources(load):
        wanted = Deployment("m", "image", "/models", load=load)
        return objects(wanted)[0]["spec"]["template"]["spec"]["containers"][0]["resources"]

    assert resources(Load(1, 10**9, 1.0)) == {
        "requests": {"cpu": "1250m", "memory": "1216Mi"},
        "limits": {"memory": "1920Mi"},
    }
    assert resources(Load(1, 1, 0.0)) == {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def test_options_that_a_format_has_no_use_for_are_refused(repository):
    ended = export(repository, "--image=own", form="ray")
    assert (ended.returncode, "--image means nothing for ray" in ended.stderr) == (1, True), ended.stderr


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["nowhere"], "it does not exist"),
        (["--name=Ocr"], "a letter first"),
        (["--replicas=0"], "must be at least 1"),
        (["--replicas=3", "--most-replicas=2"], "--most-replicas at least --replicas"),
        (["--prometheus=http://p"], "it needs --most-replicas"),
        (["--dashboard=nowhere.json"], "does not exist"),
        (["--", "--http-port=9000"], "leave it out"),
        (["--", "--replicas=4"], "leave it out"),
        (["--", "--sandbox=none"], "--sandbox"),
    ],
)
def test_wrong_choices_are_refused(repository, arguments, advice):
    ended = export(*([repository] if arguments[0].startswith("-") else []), *arguments)
    assert (ended.returncode, advice in ended.stderr, "Traceback" in ended.stderr) == (1, True, False), ended.stderr
