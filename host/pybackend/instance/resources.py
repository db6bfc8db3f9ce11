"""The rate limiter: a table of resources, and the gates of instances that need some to execute.

An instance that finds too few resources waits. When resources are released, the waiting instances get their turn: first
the one with the fewest executions, multiplied by its priority. If that one must wait on, no other instance takes the
resources that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.modelconfig.schema import RateLimit, Resource

ResourceLimits = Mapping[Resource, int]
"""By name and device; a device of None stands for every device, and for resources that devices share."""


class ResourceGate:
    """Decides when an instance that needs resources may execute.

    The instance says when an execution begins, and when it is over.

    Args:
        on_turn: called when an execution may have become possible.
    """

    def __init__(self, table: ResourceTable, limit: RateLimit, on_turn: Callable[[], None]) -> None:
        self.limit = limit
        self.on_turn = on_turn
        self.executions = 0
        self._table = table

    @property
    def is_open(self) -> bool:
        """True if an execution may begin now. For one that has to wait, this is how it gets a turn later."""
        return self._table.grants(self)

    @property
    def rank(self) -> int:
        """The smallest comes first."""
        return (self.executions + 1) * self.limit.priority

    def begin(self) -> None:
        self.executions += 1
        self._table.acquire(self)

    def end(self) -> None:
        self._table.release(self)

    def close(self) -> None:
        self._table.remove(self)


class ResourceTable:
    """All resources.

    Args:
        limits: what there is; of resources that are not named, as much as the instance needs that needs most.
    """

    def __init__(self, limits: ResourceLimits) -> None:
        self._limits = limits
        self._gates: set[ResourceGate] = set()
        self._held: dict[Resource, int] = {}
        self._waiting: dict[ResourceGate, None] = {}
        self._head: ResourceGate | None = None
        self._pass_is_due = False

    def add(self, gate: ResourceGate) -> None:
        """Take an instance in.

        Raises:
            ModelLoadError: it could never execute, or means another kind of resource by a name than others do.
        """
        for (name, device), count in gate.limit.needs.items():
            for other in (*self._gates, gate):
                if any(name == known and (device is None) != (at is None) for known, at in other.limit.needs):
                    raise ModelLoadError(
                        f'Resource "{name}" is present as both global and device-specific resource in the model '
                        "configuration.",
                        ErrorCode.INVALID_ARG,
                    )
            limit = self._configured(name, device)
            if limit is not None and limit < count:
                raise ModelLoadError(
                    f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more '
                    f"model instances, the minimum required count is {count}. See --rate-limit-resource",
                    ErrorCode.INVALID_ARG,
                )
        self._gates.add(gate)

    def remove(self, gate: ResourceGate) -> None:
        """Forget an instance that executes nothing any more."""
        self._gates.discard(gate)
        self._waiting.pop(gate, None)
        if self._head is gate:
            self._head = None
        self._schedule()

    def grants(self, gate: ResourceGate) -> bool:
        """True if an execution may begin now; else this one waits."""
        if self._pass_is_due or self._must_let_pass(gate):
            self._waiting[gate] = None
            return False
        for resource, count in gate.limit.needs.items():
            if self._held.get(resource, 0) + count > self._count(resource):
                self._waiting[gate] = None
                return False
        return True

    def acquire(self, gate: ResourceGate) -> None:
        self._waiting.pop(gate, None)
        if self._head is gate:
            self._head = None
        for resource, count in gate.limit.needs.items():
            self._held[resource] = self._held.get(resource, 0) + count

    def release(self, gate: ResourceGate) -> None:
        for resource, count in gate.limit.needs.items():
            self._held[resource] -= count
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._pass_is_due:
            self._pass_is_due = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """Give waiting instances their turn. An instance that does not ask again has nothing left to execute."""
        self._pass_is_due = False
        waiting = sorted(self._waiting, key=lambda gate: gate.rank)
        self._waiting.clear()
        self._head = None
        for gate in waiting:
            if self._must_let_pass(gate):
                self._waiting[gate] = None
                continue
            gate.on_turn()
            if self._head is None and gate in self._waiting:
                self._head = gate

    def _must_let_pass(self, gate: ResourceGate) -> bool:
        """True if the one at the head waits for something that this one needs as well."""
        head = self._head
        return head is not None and head is not gate and not head.limit.needs.keys().isdisjoint(gate.limit.needs)

    def _count(self, resource: Resource) -> int:
        limit = self._configured(*resource)
        if limit is not None:
            return limit
        return max((gate.limit.needs.get(resource, 0) for gate in self._gates), default=0)

    def _configured(self, name: str, device: int | None) -> int | None:
        limit = self._limits.get((name, device))
        return limit if limit is not None else self._limits.get((name, None))
