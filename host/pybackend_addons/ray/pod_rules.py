"""What flags of the server need so that its pod can become ready: kubelet's probes, the mounts, and the open ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pybackend.settings import ApiGroup, KeyExemption, Settings
from pybackend_addons.ray.kubernetes import PORTS

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  addresses that clients outside the pod reach


def open_ports(settings: Settings) -> dict[str, int]:
    """The ports that such a server opens, by name."""
    http = settings.http
    is_open = {"http": http.enabled, "grpc": settings.grpc.enabled, "metrics": http.metrics_enabled}
    return {name: port for name, port in PORTS.items() if is_open[name]}


def probe_obstacle(settings: Settings) -> str:
    """Why the kubelet's probes would never succeed, and the way out; empty if they can."""
    http, keys = settings.http, settings.api_keys
    if not http.enabled:
        return "the pod's probes ask over HTTP: serve it with --allow-http=true"
    if http.tls is not None and http.tls.mutual:
        return "the pod's probes have no certificate: use --http-use-ssl without --http-use-ssl-mutual"
    if any(ApiGroup.HEALTH in each.groups for each in http.restrictions):
        return "the pod's probes send no header: take health out of --http-restricted-api"
    if keys is not None and KeyExemption.HEALTH not in keys.exempt:
        return "the pod's probes have no API key: add health to --api-key-exempt, as in --api-key-exempt=health"
    return ""


def address_obstacle(settings: Settings) -> str:
    """Which port nobody outside the pod would reach, and the way out; empty if there is none."""
    http = settings.http
    addresses = {"http": http.address, "grpc": settings.grpc.address, "metrics": http.metrics_address}
    for name in open_ports(settings):
        if addresses[name] not in _EVERYWHERE:
            return (
                f"nobody outside the pod, not even its probes, reaches --{name}-address={addresses[name]}: leave it out, "
                "and a NetworkPolicy says who may come"
            )
    return ""


def mount_obstacle(settings: Settings, directories: Sequence[str]) -> str:
    """Which file would be missing in the container with mounts at these directories; empty if there is none."""
    for flag, file in _secret_files(settings):
        if not any(file.is_relative_to(directory) for directory in directories):
            return (
                f"no volume of the pod holds the file of {flag}={file}: mount a secret there with "
                f"--secret-mount NAME={file.parent}"
            )
    return ""


def _secret_files(settings: Settings) -> Iterator[tuple[str, Path]]:
    if settings.api_keys is not None:
        yield "--api-key-file", settings.api_keys.file
    for name, tls in (("http", settings.http.tls), ("grpc", settings.grpc.tls)):
        if tls is not None:
            yield f"--{name}-server-cert", tls.certificate
            yield f"--{name}-server-key", tls.key
