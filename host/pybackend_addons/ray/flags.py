"""From the flags of ``pybackend serve --on=ray`` to the settings of its application."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pybackend.errors import ModelLoadError, ServerError
from pybackend.modelconfig.loader import load_config
from pybackend.modelconfig.schema import InstanceKind
from pybackend.repository.layout import scan_repositories
from pybackend.runner import DEFAULT, Given
from pybackend.settings import Settings
from pybackend_addons.ray.cluster import OWNED_FLAGS, Cluster, Pool, cluster_of, refuse_flag

OWN = (
    "--on",
    "--replicas",
    "--target-ongoing",
    "--target-waiting",
    "--scale-down-secs",
    "--entrances",
    "--update",
    "--pool",
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


def replica_pool(text: str) -> Pool:
    """The pool in ``NAME,model=MODEL,model=OTHER,replicas=1..4,cpus=2,gpus=1``.

    Raises argparse.ArgumentTypeError for another form.

    Without ``gpus``, its models' instance groups decide; that is -1 here.
    """
    name, *settings = text.split(",")
    models: list[str] = []
    found: dict[str, Any] = {"num_gpus": -1.0}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key == "model" and value:
            models.append(value)
        elif key == "replicas":
            found["min_replicas"], found["max_replicas"] = replica_range(value)
        elif key in {"cpus", "gpus"}:
            found[f"num_{key}"] = share(value)
        else:
            raise argparse.ArgumentTypeError(
                f"Got {setting or text}, expected model=MODEL, replicas=N..M, cpus=N or gpus=N after the pool's name, separated by commas"
            )
    return Pool(name, tuple(models), **found)


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
    directories: Mapping[str, Path] = {}
    if given.pool:
        with suppress(ServerError):  # other machines may have them
            directories = scan_repositories(server.repositories).models
    found = cluster_of(
        repositories,
        arguments,
        min_replicas=least,
        max_replicas=most,
        pools=[_with_gpus(each, directories) for each in given.pool],
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


def _with_gpus(wanted: Pool, directories: Mapping[str, Path]) -> Pool:
    """A pool with as many GPUs as its models' instance groups name, if none are given."""
    if wanted.num_gpus >= 0:
        return wanted
    return replace(
        wanted,
        num_gpus=float(
            max((gpus_of(directories[model]) for model in wanted.models if model in directories), default=0)
        ),
    )


def gpus_of(directory: Path) -> int:
    """The number of GPUs that a model's configuration needs; 0 if it cannot be read."""
    try:
        groups = load_config(directory, auto_complete=True).instance_groups
    except ModelLoadError:
        return 0
    of_gpus = [group for group in groups if group.kind is InstanceKind.GPU]
    return max((max(group.gpus, default=0) + 1 for group in of_gpus), default=0)
