"""Whole servers on many machines: Ray Serve places, restarts, scales and drains them.

The server does not import this package, and requests do not pass through it: clients talk to HAProxy, and HAProxy to
the servers. ``pip install '.[ray]'`` in a clone of pybackend installs what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["build_app", "build_from_config"]


def build_app(
    *, model_repository: str | Sequence[str], min_replicas: int = 1, max_replicas: int | None = None, **settings: Any
) -> Any:
    """The application for ``ray.serve.run``: replicas of ``pybackend serve``, the entrance before them, and their coordinator.

    ``settings`` are further fields of :class:`pybackend_addons.ray.cluster.Cluster`, such as ``target_ongoing_requests=16``, or
    ``arguments``: further flags of ``pybackend serve``. Raises ServerError if the settings contradict each other.
    """
    from pybackend_addons.ray.application import application
    from pybackend_addons.ray.cluster import cluster_of

    places = [model_repository] if isinstance(model_repository, str) else list(model_repository)
    most = min_replicas if max_replicas is None else max_replicas
    return application(cluster_of(places, min_replicas=min_replicas, max_replicas=most, **settings))


def build_from_config(args: Mapping[str, Any]) -> Any:
    """The same for a configuration of Ray Serve: ``import_path: pybackend_addons.ray:build_from_config``, and ``args``."""
    return build_app(**args)
