"""What one instance tells its stub, and how the process is to be started that becomes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pybackend.environment.environment import Environment
from pybackend.modelconfig.options import StartOptions
from pybackend.sandbox.model_sandbox import InstanceSandbox
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend_wire.confinement import Confinement
from pybackend_wire.messages import DebuggerPoint

_AS_USUAL = StartOptions()


@dataclass(frozen=True)
class StubLaunch:
    """How to start a stub.

    Attributes:
        environment: the Python to run it with; the host's own if None.
        cores: where it may run; everywhere if there are none.
        confinement: what it may do; everything that the host may if None.
        zygote: it may be forked from a process that has imported what stubs need.
        preload: modules that this process has imported too, as a fork shares them.
        domain: of the models whose processes are forked from the same one; None if that is nobody's.
    """

    environment: Environment | None = None
    cores: Collection[int] = ()
    confinement: Confinement | None = None
    zygote: bool = True
    preload: tuple[str, ...] = ()
    domain: TrustDomain | None = None


@dataclass(frozen=True)
class StubSettings:
    """What one instance tells its stub.

    Attributes:
        instance_name: for messages and models.
        model_name: the model.
        model_file: absolute path of the file to import.
        version_directory: what ``get_model_dir()`` returns.
        output_memory_limit_bytes: most that the instance's output segments may hold together.
        of_backend: the file is that of a Python-based backend.
        debugger: where a debugger may attach; None where nobody debugs.
        cores: where its process may run; everywhere if there are none.
        environment: the Python to run it with; the host's own if None.
        confinement: what its process may do; everything that the host may if None.
        sandbox: looks whether the process is confined so, and ends what it leaves behind.
        start: how its process may be started.
    """

    instance_name: str
    model_name: str
    model_file: str
    version_directory: str
    output_memory_limit_bytes: int
    of_backend: bool = False
    debugger: DebuggerPoint | None = None
    cores: frozenset[int] = frozenset()
    environment: Environment | None = None
    confinement: Confinement | None = None
    sandbox: InstanceSandbox | None = None
    start: StartOptions = _AS_USUAL

    @property
    def launch(self) -> StubLaunch:
        """How to start its process."""
        return StubLaunch(
            self.environment,
            self.cores,
            self.confinement,
            self.start.zygote,
            self.start.preload,
            None if self.sandbox is None else self.sandbox.domain,
        )

    def check_confined(self, pid: int, report: Mapping[str, str]) -> None:
        """Hear what a process says about its sandbox.

        Raises:
            ModelLoadError: it must not run the model.
        """
        if self.sandbox is not None:
            self.sandbox.check(pid, report)

    async def end_leftovers(self) -> None:
        """Its process has ended: so does what that has started and left behind."""
        if self.sandbox is not None:
            await self.sandbox.end_leftovers()
