"""The parameters for starting a process that becomes a stub, whatever model it runs later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pybackend.environment.environment import Environment
from pybackend.modelconfig.options import StartOptions
from pybackend.process.stub_process import StubProcess
from pybackend.sandbox.model_sandbox import InstanceSandbox
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend_wire.confinement import Confinement


@dataclass(frozen=True)
class StubLaunch:
    """How to start a stub.

    Attributes:
        environment: the Python to run it with; the host's own if None.
        cores: the cores that it may use; empty for all.
        start: whether a zygote may fork it, and which modules that preloads.
        sandbox: confines it, checks its confinement, and kills its leftovers; None for a stub that is not confined.
    """

    environment: Environment | None = None
    cores: Collection[int] = ()
    start: StartOptions = field(default_factory=StartOptions)
    sandbox: InstanceSandbox | None = None

    @property
    def confinement(self) -> Confinement | None:
        """The permissions of the process; None if it is not confined."""
        return None if self.sandbox is None else self.sandbox.confinement

    @property
    def domain(self) -> TrustDomain | None:
        """The models that share a zygote with this one; None if it shares none."""
        return None if self.sandbox is None else self.sandbox.domain

    def check_confined(self, process: StubProcess, said: Mapping[str, str]) -> None:
        """Check a process's report about its sandbox; a report by the program that confined it counts more.

        Raises:
            ModelLoadError: the process must not run the model.
        """
        if self.sandbox is not None:
            entry = process.entry
            self.sandbox.check(process.pid, said if entry is None else entry.report, is_entered=entry is not None)

    async def end_leftovers(self) -> None:
        """Kill the leftovers of the process, which has ended."""
        if self.sandbox is not None:
            await self.sandbox.end_leftovers()
