"""``pybackend export``: writes the objects that run a repository on Kubernetes."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.options import SILENT, Serve, parse_serve_flags, visited_settings
from pybackend.cli.terminal import divided, print_text
from pybackend.errors import PybackendError, ServerError
from pybackend.repository.layout import scan_repositories
from pybackend.settings import EXIT_INTERRUPTED
from pybackend.tools.kubernetes import Deployment, Load, objects

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
"""A label of RFC 1035, with room for what Kubernetes appends to the names of pods."""

_MODELS = "/models"
_MEASURED_S = 5.0
_TIMEOUT_S = 300.0


def make_parser() -> CommandParser:
    """The parser of ``export``'s arguments."""
    parser = CommandParser(
        prog="pybackend export",
        usage="pybackend export k8s REPOSITORY [--FLAG[=VALUE]]... [-- SERVE_FLAG...]",
        description="Writes the Kubernetes objects that run a repository: Deployment, Service, PodDisruptionBudget, NetworkPolicy, and "
        "more by flags. `kubectl apply -f` takes them.",
        epilog="Flags after -- are for `pybackend serve` in the pods. exit status: 0 if the objects were written, 1 if not",
    )
    add = parser.add_argument
    add("format", choices=("k8s",), help="k8s: YAML for `kubectl apply -f`")
    add("repository", metavar="REPOSITORY", help="directory of models, or URL of a place in cloud storage")
    add("--name", default="pybackend", metavar="NAME", help="name of the objects [pybackend]")
    add("--image", default="pybackend:latest", metavar="IMAGE", help="image of the server [pybackend:latest]")
    add("--claim", default="models", metavar="NAME", help="volume claim that holds the directory [models]")
    add("--credentials", default="", metavar="SECRET", help="secret with the variables for cloud storage")
    add("--replicas", type=int, default=2, metavar="N", help="number of pods, with --most-replicas the least [2]")
    add("--most-replicas", type=int, default=0, metavar="N", help="scale automatically, up to this many pods")
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
    wanted = _wanted(given, flags, parser)
    if given.measure:
        wanted = replace(wanted, load=_measured(given.repository, flags, serve))
    text = _yaml(wanted)
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
    fixed = [flag for flag in flags if re.match(r"--(?:(?:http|grpc|metrics)-port|exit-timeout-secs)\b", flag)]
    if fixed:
        parser.refuse_with(
            f"the pods' probes and times depend on {fixed[0].partition('=')[0]}: leave it out, and edit the file"
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
    from pybackend.tools.repository_load import measure_repository

    began_s = time.monotonic()
    found: list[tuple[Load, list[str]]] = []
    errors: list[PybackendError] = []

    def visit(url: str) -> int:
        try:
            found.append(measure_repository(url, time.monotonic() - began_s, _MEASURED_S, _TIMEOUT_S))
        except PybackendError as error:
            errors.append(error)
        return 0

    status = serve(visited_settings(Path(repository), [*SILENT, "--load-model=*"], flags), visit)
    if status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if errors:
        raise errors[0]
    load, silent = found[0]
    if silent:
        sys.stderr.write(
            f"warning: random requests are refused by {', '.join(silent)}: check the resources of the container yourself\n"
        )
    return load


def _yaml(wanted: Deployment) -> str:
    try:
        import yaml
    except ImportError:
        raise ServerError("`pybackend export` writes YAML: install it with: pip install PyYAML") from None
    return str(yaml.safe_dump_all(objects(wanted), sort_keys=False, width=120, default_flow_style=False))
