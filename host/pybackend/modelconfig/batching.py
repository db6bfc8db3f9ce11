"""The ``dynamic_batching`` of a configuration, read from a validated and complete document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long, and in what number, requests may wait."""

    delays: bool = False  # True if an expired request lets others overtake it; False if it is refused
    timeout_us: int = 0  # how long a request may wait; 0 for no limit
    allows_override: bool = False  # a request may set a shorter timeout
    max_queue_size: int = 0  # number of requests that may wait; 0 for no limit


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """How requests form batches."""

    max_batch_size: int  # the model's, at least 1
    preferred_batch_sizes: frozenset[int] = frozenset()  # sizes at which a batch is sent at once
    max_queue_delay_us: int = 0  # how long an incomplete batch waits for more, counted from its oldest request
    preserve_ordering: bool = False  # responses leave in the order of the requests
    priority_levels: int = 0  # 1 is the highest; 0 for no priorities
    default_priority: int = 0  # level of requests that name none
    default_policy: QueuePolicy = QueuePolicy()  # for levels without a policy
    policies: Mapping[int, QueuePolicy] | None = None  # by level

    def policy(self, level: int) -> QueuePolicy:
        """The policy of a priority level."""
        return (self.policies or {}).get(level, self.default_policy)


def batching_of(document: Mapping[str, Any]) -> BatchingConfig:
    """The batching that a complete document configures."""
    batching = document["dynamic_batching"]
    return BatchingConfig(
        max_batch_size=max(1, document["max_batch_size"]),
        preferred_batch_sizes=frozenset(batching["preferred_batch_size"]),
        max_queue_delay_us=batching["max_queue_delay_microseconds"],
        preserve_ordering=batching["preserve_ordering"],
        priority_levels=batching["priority_levels"],
        default_priority=batching["default_priority_level"],
        default_policy=_policy(batching.get("default_queue_policy", {})),
        policies={int(level): _policy(policy) for level, policy in batching["priority_queue_policy"].items()},
    )


def _policy(policy: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        delays=policy.get("timeout_action") == "DELAY",
        timeout_us=policy.get("default_timeout_microseconds", 0),
        allows_override=policy.get("allow_timeout_override", False),
        max_queue_size=policy.get("max_queue_size", 0),
    )
