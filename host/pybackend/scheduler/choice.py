"""The scheduler that a model's configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pybackend.modelconfig.batching import batching_of
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.modelconfig.sequences import sequences_of
from pybackend.scheduler.default import DefaultScheduler
from pybackend.scheduler.dynamic_batcher import DynamicBatcher
from pybackend.scheduler.scheduler import BatchExecutor, Scheduler, SchedulerOwner
from pybackend.scheduler.sequence_batcher import SequenceBatcher
from pybackend.scheduler.sequence_state import ImplicitStates
from pybackend.scheduler.shape_rule import shape_key_of


def make_scheduler(
    config: ModelConfig, instances: Sequence[BatchExecutor], owner: SchedulerOwner, directory: Path
) -> Scheduler:
    """Make a model's scheduler.

    Args:
        config: finished.
        instances: those that take requests.
        owner: the model.
        directory: of the model's versions.

    Raises:
        ModelLoadError: a file that the scheduler needs cannot be read.
    """
    if config.scheduling is Scheduling.DYNAMIC_BATCHING:
        return DynamicBatcher(batching_of(config.document), instances, owner, shape_key_of(config))
    if config.scheduling is Scheduling.SEQUENCE_BATCHING:
        sequences = sequences_of(config.document)
        output_names = tuple(tensor.name for tensor in config.outputs)
        states = ImplicitStates(sequences, directory)
        return SequenceBatcher(sequences, states, instances, owner, output_names, shape_key_of(config))
    return DefaultScheduler(instances)
