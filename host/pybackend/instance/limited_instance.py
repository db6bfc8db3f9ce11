"""An instance that executes only while it holds the resources that its group asks for."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.inference.pending import PendingRequest
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.plan import InstanceState
from pybackend.instance.resources import ResourceGate, ResourceTable
from pybackend.instance.session import StubSession
from pybackend.ipc import stub_messages as heard
from pybackend.modelconfig.rate_limits import RateLimit


class LimitedInstance(ModelInstance):
    """Each execution takes the resources when it is sent, and gives them back when it is over."""

    _gate: ResourceGate | None = None
    _table: ResourceTable | None = None
    _holds = 0

    def limit_by(self, table: ResourceTable, limit: RateLimit) -> None:
        """Say what an execution needs; once, before there is any.

        Raises:
            ModelLoadError: it could never execute.
        """
        gate = ResourceGate(table, limit, self._owner.on_available)
        table.add(gate)
        self._table, self._gate, self._holds = table, gate, 0

    async def stop(self, finalize_timeout_s: float | None) -> bool:
        """As for every instance; what it holds is given back."""
        in_time = await super().stop(finalize_timeout_s)
        self._settle()
        if self._table is not None and self._gate is not None:
            self._table.remove(self._gate)
        return in_time

    @property
    def is_idle(self) -> bool:
        """True if an execution would start at once, and its resources are there."""
        return super().is_idle and (self._gate is None or self._gate.is_open)

    @property
    def room(self) -> int:
        """Nothing waits in the stub: it would hold what others could use."""
        return 0 if self._gate is not None else super().room

    def execute(self, batch: list[PendingRequest]) -> None:
        """Send one execution. Samples, which run before the instance is ready, need nothing."""
        if self._gate is not None and self.state is InstanceState.READY:
            self._gate.acquire()
            self._holds += 1
        super().execute(batch)
        self._settle()

    def on_result(self, result: heard.Result, tail: bytes) -> None:
        """``execute`` has returned."""
        super().on_result(result, tail)
        self._settle()

    def on_handed_back(self, executions: Sequence[int]) -> None:
        """The stub gives back what it has not begun."""
        super().on_handed_back(executions)
        self._settle()

    def on_end(self, session: StubSession, cause: str) -> None:
        """The stub is gone, and what it executed with it."""
        super().on_end(session, cause)
        self._settle()

    def _settle(self) -> None:
        """Give back what no execution under way needs."""
        while self._gate is not None and self._holds > len(self._in_flight):
            self._holds -= 1
            self._gate.release()
