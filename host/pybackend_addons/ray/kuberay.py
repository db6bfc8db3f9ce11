"""The objects that run a repository on several machines by Ray Serve: a RayService, for KubeRay."""

from __future__ import annotations

from collections.abc import Mapping

from pybackend_addons.ray.kubernetes import (
    PORTS,
    Deployment,
    Document,
    confined,
    dashboard,
    labels,
    measured_resources,
    name_protocol,
    pod_monitor,
    pod_spec,
)

_RAY = "2.60.0"
"""The tested version, which the image must have."""

_ENTRANCE = {"app.kubernetes.io/component": "entrance"}
_HEAD_RESOURCES: Document = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}
"""For Ray's own processes, the coordinator and HAProxy."""

_RAY_BYTES = 512 * 1024 * 1024
"""The memory for Ray beside a replica."""

_STORE_BYTES = 80 * 1024 * 1024
"""Nothing lies in Ray's object store, but it has a smallest size."""

_GCS, _AGENT = 6379, 52365
_HOME = "/home/pybackend"


def service_objects(wanted: Deployment, configuration: str) -> list[Document]:
    """The documents, in the order in which they are applied. ``configuration``: of Ray Serve, as text."""
    most = max(wanted.most_replicas, wanted.replicas)
    workers: Document = {
        "groupName": "replicas",
        "replicas": wanted.replicas,
        "minReplicas": wanted.replicas,
        "maxReplicas": most + max(1, most // 5),  # an update starts a replica before it stops one
        "rayStartParams": {"num-cpus": "1", "object-store-memory": str(_STORE_BYTES)},
        "template": _template(wanted, {}, _container(wanted, measured_resources(wanted.load, _RAY_BYTES), _AGENT)),
    }
    workers["template"]["spec"]["automountServiceAccountToken"] = False
    head = _container(wanted, _HEAD_RESOURCES, _GCS)
    head["ports"] = [
        {"name": name, "containerPort": port}
        for name, port in {"serve": PORTS["http"], **wanted.ports, "gcs": _GCS, "dashboard": 8265}.items()
        if name != "http"
    ]
    cluster: Document = {
        "rayVersion": _RAY,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {
            # No replica runs there.
            "rayStartParams": {
                "num-cpus": "0",
                "dashboard-host": "0.0.0.0",  # noqa: S104  the operator asks there
                "object-store-memory": str(_STORE_BYTES),
            },
            "template": _template(wanted, _ENTRANCE, head),
        },
        "workerGroupSpecs": [workers],
    }
    spec = {"serveConfigV2": configuration, "serveService": _service(wanted), "rayClusterConfig": cluster}
    metadata = {"name": wanted.name, "labels": labels(wanted)}
    documents: list[Document] = [{"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": metadata, "spec": spec}]
    if wanted.pod_monitor:
        documents.append(pod_monitor(wanted, _ENTRANCE))
    if wanted.dashboard is not None:
        documents.append(dashboard(wanted, wanted.dashboard))
    return documents


def _service(wanted: Deployment) -> Document:
    """The operator adds the selector: the machines of the cluster whose entrance has replicas."""
    ports: list[Document] = [
        {"name": "serve" if name == "http" else name, "port": port, "targetPort": port}
        for name, port in wanted.ports.items()
    ]
    name_protocol(ports)
    return {"metadata": {"name": wanted.name, "labels": labels(wanted)}, "spec": {"ports": ports}}


def _template(wanted: Deployment, more_labels: Mapping[str, str], container: Document) -> Document:
    pod = pod_spec(wanted, container)
    pod["volumes"].append({"name": "home", "emptyDir": {"sizeLimit": "1Gi"}})
    return {"metadata": {"labels": {**labels(wanted), **more_labels}}, "spec": pod}


def _container(wanted: Deployment, resources: Document, answers_at: int) -> Document:
    """The container of a machine; its command is the operator's."""
    container: Document = {
        "name": "ray",
        "image": wanted.image,
        "env": [{"name": "HOME", "value": _HOME}],  # keys lie below it
        # Without its own, the operator would ask for the proxies of Ray Serve, which have nothing to do here.
        "readinessProbe": {"tcpSocket": {"port": answers_at}, "periodSeconds": 5, "failureThreshold": 12},
        "livenessProbe": {"tcpSocket": {"port": answers_at}, "periodSeconds": 10, "failureThreshold": 12},
        "resources": resources,
        **confined(wanted),
    }
    container["volumeMounts"].append({"name": "home", "mountPath": _HOME})
    return container
