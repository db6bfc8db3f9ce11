"""An instance group's ``rate_limiter``: resources that its instances hold while they execute."""

from __future__ import annotations

from dataclasses import dataclass

from pybackend.modelconfig.schema import ModelConfig

Resource = tuple[str, int | None]
"""Name and device of a resource; None for one that all devices share."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The requirements of one instance.

    Attributes:
        needs: how many of each resource an execution takes.
        priority: 1 is the highest; 2 gets half as many executions as 1 while both wait.
    """

    needs: dict[Resource, int]
    priority: int


def rate_limit_of(config: ModelConfig, group_name: str, device_id: int) -> RateLimit | None:
    """The requirements of an instance, None if its group has no resources."""
    for group in config.document["instance_group"]:
        limiter = group.get("rate_limiter")
        if group["name"] == group_name and limiter and limiter["resources"]:
            needs: dict[Resource, int] = {}
            for each in limiter["resources"]:
                resource = (each["name"], None if each["global"] else device_id)
                needs[resource] = needs.get(resource, 0) + each["count"]
            return RateLimit(needs, limiter["priority"] or 1)
    return None
