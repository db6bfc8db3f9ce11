"""The settings of an instance and of its stubs, and the states of its life."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pybackend.inference.tensor import Buffer
from pybackend.instance.debugging import Terminal
from pybackend.instance.output_check import OutputWarnings
from pybackend.ipc.arena import TensorBudget
from pybackend.modelconfig.options import ModelOptions
from pybackend.modelconfig.warmup import WarmupSample
from pybackend.process.stub_process import StubLaunch
from pybackend_wire.host_messages import Initialize, ModelToLoad

READINESS_LIMIT_S = 5.0
"""How long one who asks waits; the model may take longer, and who asks next waits for the same answer."""


class InstanceState(Enum):
    """Where an instance is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """The last restart failed; another one follows."""
    GIVEN_UP = "given up"
    """Too many restarts failed, or were followed by a death; another one follows once in a while, and at the next
    request."""
    STOPPING = "stopping"
    STOPPED = "stopped"


DisconnectSlowClients = Callable[[Callable[[Buffer], bool], int, Callable[[], None]], bool]
"""Disconnects slow clients whose unread responses lie in memory that is short, until so many bytes become free; then
calls back. Its first argument tells whether a tensor lies there. False if there is no such client."""


def no_clients(_is_part: Callable[[Buffer], bool], _nbytes: int, _then: Callable[[], None]) -> bool:
    """:data:`DisconnectSlowClients` of a host without clients."""
    return False


@dataclass(frozen=True)
class StubSettings:
    """What a stub of an instance loads: all that is known before the model has completed its configuration.

    Rights are here, and nowhere else: code of the model, which has not run, cannot have chosen them.
    """

    launch: StubLaunch
    model: ModelToLoad
    output_memory_limit_bytes: int  # most that the instance's output segments may hold together
    namespace: str = ""  # of the model; ``""`` on a server without namespaces
    disconnect_slow_clients: DisconnectSlowClients = no_clients
    budget: TensorBudget | None = None
    callers: set[Any] = field(default_factory=set)  # the model's processes, as those who answer their calls see them
    terminal: Terminal | None = None
    # told of the files in the model's followed directory that the model writes
    on_wrote: Callable[[str], None] = field(default=lambda _path: None)


@dataclass(frozen=True)
class InstanceSettings:
    """How an instance serves once its model is loaded, and how it is brought back when its stub dies.

    The model has completed what is here, except for ``stub``.
    """

    stub: StubSettings
    initialize: Initialize
    options: ModelOptions  # without a limit of ``execute`` if the model is debugged
    # how long ``is_ready`` may take to answer one who asks; None for as long as it likes
    readiness_limit_s: float | None = READINESS_LIMIT_S
    warmup: tuple[WarmupSample, ...] = ()
    outputs: OutputWarnings | None = None
