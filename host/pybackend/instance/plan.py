"""What an instance is to be, and where it is in its life."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pybackend.instance.launch import StubSettings
from pybackend.instance.readiness import READINESS_LIMIT_S
from pybackend.modelconfig.warmup import WarmupSample


class InstanceState(Enum):
    """Where an instance is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    """The last restart failed; another one follows."""
    GIVEN_UP = "given up"
    """Too many restarts failed, or were followed by a death; only loading the model again helps."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True)
class InstancePlan:
    """How to bring a stub of this instance to life.

    Attributes:
        settings: identity and limits.
        args: what ``initialize`` receives.
        output_names: configured outputs, which is what a request means that names none.
        copy_inputs: True if models get private copies of their inputs.
        decoupled: the model answers through response senders, any number of times.
        concurrency: executions of an ``async def execute`` that may overlap.
        execution_limit_s: how long ``execute`` may run before the stub is killed; 0 for as long as it likes.
        readiness_limit_s: how long ``is_ready`` may take to answer one who asks; None for as long as it likes.
        restart_limit: restarts in a row, none of which lived for a minute, before the instance is given up; 0 for none.
        cancels_calls: a cancelled request cancels the calls that the model makes for it.
        reschedules: the model may have requests executed once more.
        warmup: samples to run before requests are taken.
    """

    settings: StubSettings
    args: dict[str, str]
    output_names: tuple[str, ...]
    copy_inputs: bool
    decoupled: bool = False
    concurrency: int = 1
    execution_limit_s: float = 0
    readiness_limit_s: float | None = READINESS_LIMIT_S
    restart_limit: int = 0
    cancels_calls: bool = False
    reschedules: bool = False
    warmup: tuple[WarmupSample, ...] = ()
