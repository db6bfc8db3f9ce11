"""The application of Ray Serve: three deployments, and how many replicas there should be."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from pybackend.errors import ServerError
from pybackend.pools import DEFAULT_POOL
from pybackend_addons.ray.cluster import Cluster, Pool, keyed
from pybackend_addons.ray.coordinator import Coordinator
from pybackend_addons.ray.coordinator_ports import CoordinatorPorts
from pybackend_addons.ray.entrance import Entrance
from pybackend_addons.ray.replica import Replica
from pybackend_addons.ray.scaling import waiting_share, wanted_servers

_HEALTH = {"health_check_period_s": 2.0, "health_check_timeout_s": 20.0}
_FIRST_MACHINE = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
"""The machine without which Ray does not work anyway; clients know its address."""

_MANY_CALLS = 10_000
"""Replicas and entrances wait in calls of the coordinator for news."""

_LEAVE_S = 30.0
"""Time that a replica needs to go, beside that for its requests."""

_SURGE = 20
"""Percent of the replicas that an update starts before it stops as many others; at least one."""


class CoordinatorActor(Coordinator):
    """The coordinator with its ports."""

    async def __init__(self, cluster: Cluster) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
            raise ServerError(
                "the machines of this cluster demand no tokens: everybody who reaches Ray's ports can run programs there. Start Ray on each "
                "with RAY_AUTH_MODE=token"
            )
        cluster = keyed(cluster)
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
    replicas = [_replicas(cluster, pool, coordinator) for pool in cluster.every_pool]
    # The only entrance gives its ports to the next one. Of several, one after the other goes and comes again.
    placement: dict[str, Any] = {"ray_actor_options": _FIRST_MACHINE, "max_surge_percent": 100}
    if cluster.entrances > 1:
        placement = {"ray_actor_options": {"num_cpus": 0}, "max_replicas_per_node": 1}
    return serve.deployment(
        Entrance,
        name="Entrance",
        num_replicas=cluster.entrances,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=cluster.exit_timeout_s + _LEAVE_S,
        **placement,
        **_HEALTH,
    ).bind(cluster, coordinator, replicas)


def deployment_name(pool: str) -> str:
    """The name of a pool's deployment in Ray Serve."""
    return "Replica" if pool == DEFAULT_POOL else f"Replica_{pool}"


def _replicas(cluster: Cluster, pool: Pool, coordinator: Any) -> Any:
    scale = (
        {"autoscaling_config": _autoscaling(cluster, pool)}
        if pool.max_replicas > pool.min_replicas
        else {"num_replicas": pool.min_replicas}
    )
    return serve.deployment(
        Replica,
        name=deployment_name(pool.name),
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=cluster.exit_timeout_s + _LEAVE_S,
        max_surge_percent=_SURGE if cluster.has_room else 0,
        max_constructor_retry_count=_STARTS,
        ray_actor_options={
            "num_cpus": pool.num_cpus,
            "num_gpus": pool.num_gpus,
            **({"memory": pool.memory_bytes} if pool.memory_bytes else {}),
        },
        **scale,
        **_HEALTH,
    ).bind(cluster, coordinator, pool.name)


def _autoscaling(cluster: Cluster, pool: Pool) -> AutoscalingConfig:
    policy = AutoscalingPolicy(policy_function=WantedReplicas, policy_kwargs={"target_waiting": cluster.target_waiting})
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # variables of Ray's controller will set the interval one day
        return AutoscalingConfig(
            min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas,
            target_ongoing_requests=cluster.target_ongoing_requests,
            upscale_delay_s=5.0,
            downscale_delay_s=cluster.scale_down_s,
            metrics_interval_s=1.0,
            look_back_period_s=5.0,
            policy=policy,
        )


class WantedReplicas:
    """The replicas for the requests of all of them, as they report these themselves: the most that a target asks for."""

    def __init__(self, target_waiting: float) -> None:
        self._target_waiting = target_waiting

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        ongoing, waiting, computing = (
            sum(context.aggregated_metrics.get(name, {}).values()) for name in ("ongoing", "waiting", "computing")
        )
        wanted = ongoing / context.config.get_target_ongoing_requests()
        if self._target_waiting:
            present = len(context.running_replicas)
            wanted = max(wanted, wanted_servers(present, waiting_share(waiting, computing), self._target_waiting))
        return math.ceil(wanted), {}
