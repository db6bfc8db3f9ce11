"""From the flags of ``pybackend serve --on=ray`` to the settings of its application."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from pybackend.cli.setting_sources import DEFAULT, Given
from pybackend.errors import ServerError
from pybackend.ray.cluster import OWNED_FLAGS, Cluster, cluster_of, refuse_flag
from pybackend.settings import Settings

OWN = (
    "--on",
    "--replicas",
    "--target-ongoing",
    "--target-waiting",
    "--scale-down-secs",
    "--entrances",
    "--update",
    "--replica-cpus",
    "--replica-gpus",
)
_ELSEWHERE = {
    *OWN,
    *(f"--{name}" for name in OWNED_FLAGS),
    "--config-file",
    "--model-repository",
    "--exit-timeout-secs",
}

_RANGE = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")


def replica_range(text: str) -> tuple[int, int]:
    """The bounds in ``2..8``, or ``2``. Raises argparse.ArgumentTypeError for another form."""
    found = _RANGE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2] or found[1]):
        raise argparse.ArgumentTypeError(f"Got {text}, expected a number such as 2, or a range such as 2..8")
    return int(found[1]), int(found[2] or found[1])


def share(text: str) -> float:
    """A number of 0 or more. Raises argparse.ArgumentTypeError for another one."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1_000_000:
        raise argparse.ArgumentTypeError(f"Got {text}, expected a number of 0 or more, such as 0.5")
    return number


def cluster_settings(given: argparse.Namespace, settings: Sequence[Given], server: Settings) -> Cluster:
    """The settings of the application; ``server`` are those of one server with these flags.

    Raises ServerError if a flag cannot be used here.
    """
    arguments = []
    repositories: list[str] = []
    addresses: set[str] = set()
    for setting in settings:
        flag = setting.flag
        if setting.texts is None or setting.source == DEFAULT:
            continue
        if vars(given)[flag.key] != flag.usual and flag.name not in _ELSEWHERE:
            refuse_flag(flag.name.removeprefix("--"))
        if flag.name == "--model-repository":
            repositories += setting.texts
        elif flag.name.endswith("-address"):
            addresses.update(setting.texts)
        elif flag.name not in _ELSEWHERE:
            arguments += [f"{flag.name}={text}" for text in setting.texts]
    if len(addresses) > 1:
        raise ServerError(f"the entrance has one address, and the flags name several: {', '.join(sorted(addresses))}")
    least, most = given.replicas
    found = cluster_of(
        repositories,
        arguments,
        min_replicas=least,
        max_replicas=most,
        target_ongoing_requests=given.target_ongoing,
        target_waiting=given.target_waiting,
        scale_down_s=given.scale_down_secs,
        address=addresses.pop() if addresses else "",
        http_port=given.http_port,
        grpc_port=given.grpc_port,
        metrics_port=given.metrics_port,
        http_tls=server.http.tls,
        grpc_tls=server.grpc.tls,
        api_keys=server.api_keys,
        entrances=given.entrances,
        num_cpus=given.replica_cpus,
        num_gpus=given.replica_gpus,
        exit_timeout_s=given.exit_timeout_secs,
        directory=os.getcwd(),
    )
    return replace(found, updates=given.update)


def refuse_without_ray(given: argparse.Namespace, settings: Sequence[Given]) -> None:
    """Raise ServerError for a flag that means something with ``--on=ray`` only."""
    for setting in settings:
        flag = setting.flag
        if flag.name in OWN and setting.texts is not None:
            usual = flag.read(flag.usual) if isinstance(flag.usual, str) and flag.read else flag.usual
            if vars(given)[flag.key] != usual:
                raise ServerError(f"{flag.name} needs --on=ray: one machine has one server")
