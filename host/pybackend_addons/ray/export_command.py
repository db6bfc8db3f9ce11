"""``pybackend export``: writes the files with which other systems run a repository: Kubernetes, Ray Serve, and both."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pybackend.cli.command_line import SILENT, parse, parse_serve_flags, visited, visited_settings
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import divided, print_error, print_text
from pybackend.errors import ServerError
from pybackend.repository.layout import scan_repositories
from pybackend.runner import Serve
from pybackend_addons.ray.cluster import serve_config
from pybackend_addons.ray.flags import cluster_settings
from pybackend_addons.ray.kuberay import service_objects
from pybackend_addons.ray.kubernetes import Deployment, Load, objects, reserved_bytes, reserved_cpu

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
"""A label of RFC 1035, with room for what Kubernetes appends to the names of pods."""

_UNUSED = {
    "k8s": (),
    "ray": ("name", "image", "claim", "credentials", "prometheus", "pod_monitor", "dashboard"),
    "kuberay": ("prometheus",),
}
"""The formats, and the options that mean nothing for each."""

_OF_COMMAND = r"--(on|update|replicas)\b"
_FIXED = {
    "k8s": re.compile(rf"{_OF_COMMAND}|--((http|grpc|metrics)-port|exit-timeout-secs)\b"),
    "ray": re.compile(_OF_COMMAND),
    "kuberay": re.compile(rf"{_OF_COMMAND}|--((http|grpc|metrics)-port|replica-(cpus|gpus)|pool)\b"),
}
"""Flags of the server that the file decides."""

_MODELS = "/models"
_MEASURED_S = 5.0
_TIMEOUT_S = 300.0


def make_parser() -> CommandParser:
    """The parser of ``export``'s arguments."""
    parser = CommandParser(
        prog="pybackend export",
        usage="pybackend export k8s|ray|kuberay REPOSITORY [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Writes the file with which another system runs a repository: the objects of Kubernetes, the configuration of Ray Serve, "
        "or a RayService, which has Ray Serve run it on Kubernetes.",
        epilog="Flags after -- are for `pybackend serve`; for ray and kuberay those of --on=ray, too. exit status: 0 if the file was written, "
        "1 if not",
    )
    add = parser.add_argument
    add(
        "format", choices=tuple(_UNUSED), help="k8s, kuberay: YAML for `kubectl apply -f`; ray: YAML for `serve deploy`"
    )
    add("repository", metavar="REPOSITORY", help="directory of models, or URL of a place in cloud storage")
    add("--name", default="pybackend", metavar="NAME", help="name of the objects [pybackend]")
    add("--image", default="pybackend:latest", metavar="IMAGE", help="image of the server [pybackend:latest]")
    add("--claim", default="models", metavar="NAME", help="volume claim that holds the directory [models]")
    add("--credentials", default="", metavar="SECRET", help="secret with the variables for cloud storage")
    add("--replicas", type=int, default=2, metavar="N", help="number of servers, with --most-replicas the least [2]")
    add("--most-replicas", type=int, default=0, metavar="N", help="scale automatically, up to this many servers")
    add(
        "--prometheus",
        default="",
        metavar="URL",
        help="KEDA asks this Prometheus how long requests wait, and scales by that [a HorizontalPodAutoscaler: by processor]",
    )
    add(
        "--pod-monitor", action="store_true", help="a PodMonitor, for the Prometheus operator [annotations of the pods]"
    )
    add("--dashboard", type=Path, metavar="FILE", help="a ConfigMap with this dashboard, for Grafana")
    add(
        "--measure",
        action="store_true",
        help="serve the repository here first, send random requests to each model, and reserve what that used",
    )
    add("--output", type=Path, metavar="FILE", help="write into this file [standard output]")
    return parser


def run_export(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given = parser.parsed(own)
    for name in _UNUSED[given.format]:
        if vars(given)[name] != parser.get_default(name):
            parser.refuse_with(f"--{name.replace('_', '-')} means nothing for {given.format}")
    wanted = _wanted(given, flags, parser)
    if given.measure:
        wanted = replace(wanted, load=_measured(given.repository, wanted.flags, serve))
    text = _yaml_of(given.format, wanted, given.repository, flags)
    if given.output is None:
        print_text(text.rstrip("\n"))
        return 0
    try:
        given.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServerError(f"cannot write {given.output}: {error.strerror}") from None
    return 0


def _wanted(given: argparse.Namespace, flags: Sequence[str], parser: CommandParser) -> Deployment:
    """Raises PybackendError if a choice is wrong, or the server would refuse its flags."""
    if not _NAME.fullmatch(given.name):
        parser.refuse_with(
            f'Bad option: "--name". {given.name} is no name for Kubernetes: at most 53 lower-case letters, digits and hyphens, '
            "a letter first"
        )
    if given.replicas < 1 or (given.most_replicas and given.most_replicas < given.replicas):
        parser.refuse_with("--replicas must be at least 1, and --most-replicas at least --replicas")
    if given.prometheus and not given.most_replicas:
        parser.refuse_with("--prometheus is for scaling: it needs --most-replicas=N")
    settings = parse_serve_flags([given.repository, *flags])
    fixed = [flag for flag in flags if _FIXED[given.format].match(flag)]
    if fixed:
        parser.refuse_with(
            f"other parts of the file depend on {fixed[0].partition('=')[0]}: leave it out, and edit the file"
        )
    if given.dashboard is not None and not given.dashboard.is_file():
        raise ServerError(
            f"{given.dashboard} does not exist: docs/operators/observe/dashboard.json is one for this server"
        )
    in_cloud = bool(settings.cloud_repositories.urls)
    if not in_cloud and not scan_repositories(settings.repositories).models:
        raise ServerError(f"{given.repository} holds no model")
    return Deployment(
        name=given.name,
        image=given.image,
        repository=given.repository if in_cloud else _MODELS,
        claim="" if in_cloud else given.claim,
        credentials=given.credentials,
        flags=flags,
        replicas=given.replicas,
        most_replicas=given.most_replicas,
        prometheus_url=given.prometheus,
        pod_monitor=given.pod_monitor,
        dashboard=given.dashboard,
    )


def _measured(repository: str, flags: Sequence[str], serve: Serve) -> Load:
    """The load of a server with these models, which runs for it. Raises PybackendError if it does not start."""
    from pybackend_addons.ray.repository_load import measure_repository

    began_s = time.monotonic()
    load, silent = visited(
        serve,
        visited_settings(Path(repository), [*SILENT, "--load-model=*"], flags),
        lambda url: measure_repository(url, time.monotonic() - began_s, _MEASURED_S, _TIMEOUT_S),
    )
    if silent:
        print_error(
            f"warning: random requests are refused by {', '.join(silent)}: check the resources of the container yourself"
        )
    return load


def _yaml_of(form: str, wanted: Deployment, repository: str, flags: Sequence[str]) -> str:
    if form == "k8s":
        return _yaml(objects(wanted))
    place = repository if form == "ray" else wanted.repository
    scale = f"--replicas={wanted.replicas}..{max(wanted.most_replicas, wanted.replicas)}"
    line = parse(["serve", place, "--on=ray", scale, *flags])
    assert line is not None
    cluster = cluster_settings(*line)
    cluster = replace(cluster, address=cluster.address or "0.0.0.0")  # noqa: S104  the page says who must reach it
    if form == "kuberay":  # each replica has a pod, which has what it needs
        return _yaml(service_objects(wanted, _yaml([serve_config(replace(cluster, num_cpus=1.0))])))
    if wanted.load is not None:
        cluster = replace(cluster, num_cpus=reserved_cpu(wanted.load), memory_bytes=reserved_bytes(wanted.load))
    return _yaml([serve_config(cluster)])


def _yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Texts of several lines stay readable."""

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None),
    )
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=120, default_flow_style=False))
