"""The instances that a configuration defines, one by one, and the resources that they hold while they execute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pybackend.modelconfig.schema import InstanceGroup, InstanceKind, ModelConfig


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Specification of one instance."""

    name: str  # ``<group>_<n>``; instances of one group on several GPUs share a name
    group: str
    kind: str  # ``CPU``, ``GPU`` or ``MODEL``, as passed to models
    device_id: int  # the GPU's number; 0 for the other kinds
    passive: bool  # created, but never given a request
    host_policy: str  # name of the host policy, ``""`` for the default of the kind

    @property
    def policy_name(self) -> str:
        """The host policy that applies: the configured one, or the kind's default."""
        return self.host_policy or (f"gpu_{self.device_id}" if self.kind == "GPU" else self.kind.lower())


def instances(config: ModelConfig) -> list[InstanceSpec]:
    """All instances of a finished configuration, in configured order."""
    return [
        InstanceSpec(
            name=f"{group.name}_{index}",
            group=group.name,
            kind=group.kind.removeprefix("KIND_"),
            device_id=device_id,
            passive=group.passive,
            host_policy=group.host_policy,
        )
        for group in config.instance_groups
        for index in range(group.count)
        for device_id in _devices(group)
    ]


def _devices(group: InstanceGroup) -> Iterator[int]:
    yield from group.gpus if group.kind is InstanceKind.GPU else (0,)


Resource = tuple[str, int | None]
"""Name and device of a resource; None for one that all devices share."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The requirements of one instance."""

    needs: dict[Resource, int]  # how many of each resource an execution takes
    priority: int  # 1 is the highest; 2 gets half as many executions as 1 while both wait


def rate_limit_of(config: ModelConfig, group_name: str, device_id: int) -> RateLimit | None:
    """The requirements in the ``rate_limiter`` of an instance's group; None if it has no resources."""
    for group in config.document["instance_group"]:
        limiter = group.get("rate_limiter")
        if group["name"] == group_name and limiter and limiter["resources"]:
            needs: dict[Resource, int] = {}
            for each in limiter["resources"]:
                resource = (each["name"], None if each["global"] else device_id)
                needs[resource] = needs.get(resource, 0) + each["count"]
            return RateLimit(needs, limiter["priority"] or 1)
    return None
