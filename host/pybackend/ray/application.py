"""The application of Ray Serve: three deployments, and how many replicas there should be."""

from __future__ import annotations

import math
import os
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from pybackend.errors import ServerError
from pybackend.ray.cluster import Cluster
from pybackend.ray.coordinator import Coordinator
from pybackend.ray.coordinator_ports import CoordinatorPorts
from pybackend.ray.entrance import Entrance
from pybackend.ray.replica import Replica

_HEALTH = {"health_check_period_s": 2.0, "health_check_timeout_s": 20.0}
_FIRST_MACHINE = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
"""The machine without which Ray does not work anyway; clients know its address."""

_MANY_CALLS = 10_000
"""Replicas and entrances wait in calls of the coordinator for news."""

_LEAVE_S = 30.0
"""Time that a replica needs to go, beside that for its requests."""


class CoordinatorActor(Coordinator):
    """The coordinator with its ports."""

    async def __init__(self, cluster: Cluster) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
            raise ServerError(
                "the machines of this cluster demand no tokens: everybody who reaches Ray's ports can run programs there. Start Ray on each "
                "with RAY_AUTH_MODE=token"
            )
        await super().__init__(cluster)
        self._ports = CoordinatorPorts(self, cluster.key)
        self.address = await self._ports.open()

    async def __del__(self) -> None:  # Ray Serve awaits it before the actor ends
        await self.close()


_STARTS = 3
"""How often a replica that fails to start is tried."""


def application(cluster: Cluster) -> Any:
    """The application of these settings, for ``serve.run``."""
    coordinator = serve.deployment(
        CoordinatorActor,
        name="Coordinator",
        num_replicas=1,
        max_ongoing_requests=_MANY_CALLS,
        ray_actor_options=_FIRST_MACHINE,
        **_HEALTH,
    ).bind(cluster)
    scale: dict[str, Any] = {"num_replicas": cluster.min_replicas}
    if cluster.max_replicas > cluster.min_replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=cluster.min_replicas,
                max_replicas=cluster.max_replicas,
                target_ongoing_requests=cluster.target_ongoing_requests,
                upscale_delay_s=5.0,
                downscale_delay_s=60.0,
                metrics_interval_s=1.0,
                look_back_period_s=5.0,
                policy=AutoscalingPolicy(policy_function=wanted_replicas),
            )
        }
    replicas = serve.deployment(
        Replica,
        name="Replica",
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=cluster.exit_timeout_s + _LEAVE_S,
        max_constructor_retry_count=_STARTS,
        ray_actor_options={"num_cpus": cluster.num_cpus, "num_gpus": cluster.num_gpus},
        **scale,
        **_HEALTH,
    ).bind(cluster, coordinator)
    return serve.deployment(
        Entrance,
        name="Entrance",
        num_replicas=cluster.entrances,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0} if cluster.entrances > 1 else _FIRST_MACHINE,
        **({"max_replicas_per_node": 1} if cluster.entrances > 1 else {}),
        **_HEALTH,
    ).bind(cluster, coordinator, replicas)


def wanted_replicas(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """The replicas for the requests that wait and run in all of them, as they report these themselves."""
    ongoing = sum(context.aggregated_metrics.get("ongoing", {}).values())
    target = context.config.get_target_ongoing_requests()
    return math.ceil(ongoing / target), {}
