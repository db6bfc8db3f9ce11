"""The Kubernetes objects that run a repository: plain documents, as `kubectl apply` takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybackend_addons.ray.scaling import TARGET, waiting_query

Document = dict[str, Any]

HTTP, GRPC, METRICS = 8000, 8001, 8002
PORTS = {"http": HTTP, "grpc": GRPC, "metrics": METRICS}

_USER = 1000
_PRE_STOP_S, _EXIT_TIMEOUT_S = 5, 45
_GRACE_S = 60
"""Above the two others together: the pod leaves the service's endpoints, then answers the requests that it has."""

_PROBE_S = 2
_START_FACTOR, _LEAST_START_S = 10, 300
"""A node may be slower than the machine of the measurement, and environments are unpacked there first."""

_MIB = 1024 * 1024
_ROUND_MIB, _LEAST_MIB = 64, 256
_MILLICPUS, _LEAST_MILLICPUS = 1000, 250


@dataclass(frozen=True)
class Load:
    """The load that the models of a repository caused while they were measured."""

    start_s: float  # from the command to readiness
    memory_bytes: int  # the most that the server and its models' processes used
    cpu: float  # cores, with one client for each model


@dataclass(frozen=True)
class Deployment:
    """The choices of an operator."""

    name: str
    image: str
    repository: str  # directory in the container, or a URL of cloud storage
    claim: str = ""  # the volume claim that holds the directory
    credentials: str = ""  # a secret whose entries become variables of the server
    secrets: Mapping[str, str] = field(default_factory=dict)  # directories where secrets are mounted, by their names
    flags: Sequence[str] = ()
    ports: Mapping[str, int] = field(default_factory=lambda: PORTS)  # those that the flags open
    https: bool = False  # the flags have the HTTP port use TLS
    replicas: int = 2
    most_replicas: int = 0  # 0: no autoscaling
    prometheus_url: str = ""  # KEDA asks there; without it, the processor's load decides
    pod_monitor: bool = False
    dashboard: Path | None = None
    cache_size: str = "20Gi"
    shared_memory_size: str = "64Mi"
    load: Load | None = None


def objects(wanted: Deployment) -> list[Document]:
    """The documents, in the order in which they are applied."""
    documents = [_deployment(wanted), _service(wanted), _disruption_budget(wanted), _network_policy(wanted)]
    if wanted.most_replicas:
        documents.append(_scaled_object(wanted) if wanted.prometheus_url else _autoscaler(wanted))
    if wanted.pod_monitor:
        documents.append(pod_monitor(wanted))
    if wanted.dashboard is not None:
        documents.append(dashboard(wanted, wanted.dashboard))
    return documents


def _object(wanted: Deployment, version: str, kind: str, spec: Mapping[str, Any], suffix: str = "") -> Document:
    metadata = {"name": wanted.name + suffix, "labels": labels(wanted)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def labels(wanted: Deployment) -> dict[str, str]:
    """The labels of all objects and pods."""
    return {"app.kubernetes.io/name": "pybackend", "app.kubernetes.io/instance": wanted.name}


def _selector(wanted: Deployment) -> Document:
    return {"matchLabels": labels(wanted)}


def _deployment(wanted: Deployment) -> Document:
    spec: Document = {"selector": _selector(wanted), "strategy": {"rollingUpdate": {"maxUnavailable": 0}}}
    if not wanted.most_replicas:  # else the autoscaler decides, and applying the file again must not undo it
        spec = {"replicas": wanted.replicas, **spec}
    metadata: Document = {"labels": labels(wanted)}
    if "metrics" in wanted.ports and not wanted.pod_monitor:
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(METRICS),
            "prometheus.io/path": "/metrics",
        }
    pod = {"automountServiceAccountToken": False, **pod_spec(wanted, _container(wanted))}
    spec["template"] = {"metadata": metadata, "spec": pod}
    return _object(wanted, "apps/v1", "Deployment", spec)


def pod_spec(wanted: Deployment, container: Document) -> Document:
    """The specification of a pod with such a :func:`confined` container."""
    volumes: Document = {
        "cache": {"emptyDir": {"sizeLimit": wanted.cache_size}},
        "temporary": {"emptyDir": {"sizeLimit": "1Gi"}},
        "shared-memory": {"emptyDir": {"medium": "Memory", "sizeLimit": wanted.shared_memory_size}},
    }
    if wanted.claim:
        volumes["models"] = {"persistentVolumeClaim": {"claimName": wanted.claim, "readOnly": True}}
    volumes.update((f"secret-{index}", {"secret": {"secretName": name}}) for index, name in enumerate(wanted.secrets))
    return {
        # Kubernetes would add variables such as PYBACKEND_HTTP_PORT for services of such names.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": name, **volume} for name, volume in volumes.items()],
    }


def _container(wanted: Deployment) -> Document:
    start_s = _LEAST_START_S if wanted.load is None else max(_LEAST_START_S, _START_FACTOR * wanted.load.start_s)
    return {
        "name": "pybackend",
        "image": wanted.image,
        "args": [
            wanted.repository,
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            # A pod is ready although a model is down, so that the others go on.
            "--strict-readiness=false",
            *wanted.flags,
        ],
        "ports": [{"name": name, "containerPort": port} for name, port in wanted.ports.items()],
        "startupProbe": _probe(wanted, "ready", periodSeconds=_PROBE_S, failureThreshold=math.ceil(start_s / _PROBE_S)),
        "readinessProbe": _probe(wanted, "ready", periodSeconds=5),
        "livenessProbe": _probe(wanted, "live", periodSeconds=10, timeoutSeconds=5),
        # Endpoints are withdrawn beside the signal to stop, not before it.
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_PRE_STOP_S)]}}},
        "resources": measured_resources(wanted.load),
        **confined(wanted),
    }


def confined(wanted: Deployment) -> Document:
    """What each container with the server has: no privileges, its mounts, and the variables for cloud storage."""
    mounts: list[Document] = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108  in the container
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if wanted.claim:
        mounts.append({"name": "models", "mountPath": wanted.repository, "readOnly": True})
    for index, directory in enumerate(wanted.secrets.values()):
        mounts.append({"name": f"secret-{index}", "mountPath": directory, "readOnly": True})
    found: Document = {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    if wanted.credentials:
        found["envFrom"] = [{"secretRef": {"name": wanted.credentials}}]
    return found


def _probe(wanted: Deployment, question: str, **times: int) -> Document:
    get = {"path": f"/v2/health/{question}", "port": "http"}
    if wanted.https:  # Kubernetes looks at no certificate
        get["scheme"] = "HTTPS"
    return {"httpGet": get, **times}


def reserved_cpu(load: Load) -> float:
    """The processors for such a server."""
    return max(_LEAST_MILLICPUS, math.ceil(load.cpu * 1.25 * _MILLICPUS / 50) * 50) / _MILLICPUS


def reserved_bytes(load: Load) -> int:
    """The memory for such a server."""
    return max(_LEAST_MIB * _MIB, math.ceil(load.memory_bytes * 1.25))


def measured_resources(load: Load | None, more_bytes: int = 0) -> Document:
    """The requests are a quarter above the measured load, and the limit on memory is twice it; no limit on processors.

    ``more_bytes``: of memory, for other processes in the container.
    """
    if load is None:
        return {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    return {
        "requests": {
            "cpu": f"{round(reserved_cpu(load) * _MILLICPUS)}m",
            "memory": _mebibytes(reserved_bytes(load) + more_bytes),
        },
        "limits": {"memory": _mebibytes(max(_LEAST_MIB * _MIB, load.memory_bytes) * 2 + more_bytes)},
    }


def _mebibytes(nbytes: float) -> str:
    return f"{max(_LEAST_MIB, math.ceil(nbytes / _MIB / _ROUND_MIB) * _ROUND_MIB)}Mi"


def _service(wanted: Deployment) -> Document:
    ports = [{"name": name, "port": port, "targetPort": name} for name, port in wanted.ports.items()]
    name_protocol(ports)
    return _object(wanted, "v1", "Service", {"selector": labels(wanted), "ports": ports})


def name_protocol(ports: Sequence[Document]) -> None:
    """Name the protocol of gRPC's port among those of a service: meshes and gateways need it."""
    for port in ports:
        if port["name"] == "grpc":
            port["appProtocol"] = "kubernetes.io/h2c"


def _disruption_budget(wanted: Deployment) -> Document:
    return _object(wanted, "policy/v1", "PodDisruptionBudget", {"maxUnavailable": 1, "selector": _selector(wanted)})


def _network_policy(wanted: Deployment) -> Document:
    """Clients of the same namespace reach the models, and everyone in the cluster the metrics."""
    clients = [{"protocol": "TCP", "port": name} for name in wanted.ports if name != "metrics"]
    rules: list[Document] = [{"from": [{"podSelector": {}}], "ports": clients}]
    if "metrics" in wanted.ports:
        rules.append({"ports": [{"protocol": "TCP", "port": "metrics"}]})
    spec = {"podSelector": _selector(wanted), "policyTypes": ["Ingress"], "ingress": rules}
    return _object(wanted, "networking.k8s.io/v1", "NetworkPolicy", spec)


def _autoscaler(wanted: Deployment) -> Document:
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": wanted.name}
    bounds = {"minReplicas": wanted.replicas, "maxReplicas": wanted.most_replicas}
    spec = {"scaleTargetRef": target, **bounds, "metrics": [cpu]}
    return _object(wanted, "autoscaling/v2", "HorizontalPodAutoscaler", spec)


def _scaled_object(wanted: Deployment) -> Document:
    trigger = {
        "type": "prometheus",
        # The value is the same for any number of pods: it is a share of time, no count of requests.
        "metricType": "Value",
        "metadata": {
            "serverAddress": wanted.prometheus_url,
            "query": waiting_query(f'pod=~"{wanted.name}-.*"'),
            "threshold": f"{TARGET:g}",
        },
    }
    bounds = {"minReplicaCount": wanted.replicas, "maxReplicaCount": wanted.most_replicas}
    # A small share says that there is room, not how much: one pod goes at a time.
    down = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": down}}}
    spec = {"scaleTargetRef": {"name": wanted.name}, **bounds, "advanced": advanced, "triggers": [trigger]}
    return _object(wanted, "keda.sh/v1alpha1", "ScaledObject", spec)


def pod_monitor(wanted: Deployment, more_labels: Mapping[str, str] | None = None) -> Document:
    """For the Prometheus operator. ``more_labels``: of the pods that have metrics."""
    endpoint = {"port": "metrics", "path": "/metrics", "interval": "15s"}
    selector = {"matchLabels": {**labels(wanted), **(more_labels or {})}}
    return _object(
        wanted, "monitoring.coreos.com/v1", "PodMonitor", {"selector": selector, "podMetricsEndpoints": [endpoint]}
    )


def dashboard(wanted: Deployment, file: Path) -> Document:
    """For the sidecar of Grafana's chart, which looks for the label."""
    text = json.dumps(json.loads(file.read_text(encoding="utf-8")))
    metadata = {"name": f"{wanted.name}-dashboard", "labels": {**labels(wanted), "grafana_dashboard": "1"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{wanted.name}.json": text}}
