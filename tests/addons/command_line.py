"""Command lines of applications on Ray as the program reads them."""

from collections.abc import Sequence

from pybackend.cli.command_line import parse
from pybackend_addons.ray.cluster import Cluster
from pybackend_addons.ray.flags import cluster_settings


def ray_settings(arguments: Sequence[str]) -> Cluster:
    """The settings of an application with these arguments, the first of which is ``serve``."""
    line = parse(arguments)
    assert line is not None
    return cluster_settings(*line)
