"""Several machines by Ray: a row of :mod:`pybackend.plugins`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from pybackend.flag import Flag, integer, switch
from pybackend.runner import Given, Runner
from pybackend.settings import Settings
from pybackend_addons.ray.flags import cluster_settings, replica_pool, replica_range, share

# The formatter would put each column of a row on a separate line.
# fmt: off
_FLAGS = (
    Flag("--replicas", "N[..M]", "with --on=ray, the number of replicas, or the least and the greatest",
         read=replica_range, default="1",
         page="with `--on=ray`, the number of replicas, or a range: `2..8`"),
    Flag("--target-ongoing", "N", "with --on=ray, requests of one replica, waiting and running, above which replicas are added",
         read=share, default="16",
         page="with a range of replicas, [the requests of one replica](many-machines.md#how-many-replicas), waiting and running, above "
         "which replicas are added"),
    Flag("--target-waiting", "N", "with --on=ray, seconds that requests wait for each second of computing, above which replicas are added",
         read=share, default="0",
         page="with a range of replicas, the seconds that requests wait for each second of computing, above which replicas are added, too. "
         "0: only `--target-ongoing` counts"),
    Flag("--scale-down-secs", "SECONDS", "with --on=ray, how long fewer replicas must suffice until some are removed",
         read=share, default="60"),
    Flag("--pool", "NAME,SETTING=VALUE...",
         "with --on=ray, replicas for some of the models: vision,model=resnet,replicas=1..4,cpus=2,gpus=1; may be repeated",
         read=replica_pool, repeats=True, default_text="all models are in one",
         page="with `--on=ray`, replicas for some of the models: see [Pools](many-machines.md#pools); may be repeated"),
    Flag("--entrances", "N", "with --on=ray, the number of machines that clients may connect to",
         read=integer(1, 1000), default=1),
    switch("--update", "with --on=ray, change the application that runs, and end", default=False,
           page="with `--on=ray`, [change the application that runs](many-machines.md#updates), and end"),
    Flag("--replica-cpus", "N", "with --on=ray, the CPUs that Ray reserves for each replica", read=share, default="1"),
    Flag("--replica-gpus", "N", "with --on=ray, the GPUs that Ray reserves for each replica", read=share, default="0"),
)
# fmt: on


class Ray:
    """See :class:`pybackend.runner.Runner`."""

    flags: Mapping[str, Sequence[Flag]] = {"several machines": _FLAGS}

    def decide(self, settings: Settings, _given: argparse.Namespace, _environ: Mapping[str, str]) -> Settings:
        """One server is as it would be without these flags."""
        return settings

    def prepare(self, given: argparse.Namespace, sources: Sequence[Given], settings: Settings) -> Callable[[], int]:
        cluster = cluster_settings(given, sources, settings)

        def run() -> int:
            from pybackend_addons.ray.command import serve_on_ray  # late: it is about to import Ray

            return serve_on_ray(cluster)

        return run


RAY: Runner = Ray()
