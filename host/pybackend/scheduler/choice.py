"""Chooses a model's scheduler from its configuration, and composes the scheduler's stages of the response path."""

import os
from collections.abc import Sequence

from pybackend.inference.pending import ResponsePath
from pybackend.modelconfig.schema import ModelConfig, Scheduling, batching_of
from pybackend.modelconfig.sequences import sequences_of
from pybackend.scheduler.default import DefaultScheduler
from pybackend.scheduler.dynamic_batcher import DynamicBatcher, ShapeKey
from pybackend.scheduler.ordered_delivery import DeliveryLine, OrderedDelivery
from pybackend.scheduler.scheduler import BatchExecutor, Scheduler, SchedulerOwner
from pybackend.scheduler.sequence_batcher import SequenceBatcher
from pybackend.scheduler.sequence_inputs import ImplicitStates
from pybackend.scheduler.timing import dispatch_barrier


def shape_key_of(config: ModelConfig) -> ShapeKey | None:
    """A function that returns equal keys for requests that may share a batch; None if all may.

    Inputs with variable shapes must agree unless ``allow_ragged_batch`` is set. If inputs are optional, requests that
    share a batch must have the same inputs.
    """
    compared = {tensor.name for tensor in config.inputs if -1 in tensor.dims and not tensor.allow_ragged_batch}
    if any(tensor.optional for tensor in config.inputs):
        return lambda request: frozenset(
            (tensor.name, tuple(tensor.shape[1:]) if tensor.name in compared else ()) for tensor in request.inputs
        )
    if not compared:
        return None
    return lambda request: frozenset(
        (tensor.name, tuple(tensor.shape[1:])) for tensor in request.inputs if tensor.name in compared
    )


_BATCHING = frozenset({Scheduling.DYNAMIC_BATCHING, Scheduling.SEQUENCE_BATCHING})


def make_scheduler(
    config: ModelConfig,
    instances: Sequence[BatchExecutor],
    owner: SchedulerOwner,
    states: ImplicitStates | None,
    pass_on: ResponsePath,
) -> tuple[Scheduler, ResponsePath]:
    """Make a model's scheduler, and the path through its stages to ``pass_on``, which must receive all responses."""
    barrier = dispatch_barrier(os.environ, config.name) if config.scheduling in _BATCHING else None
    if config.scheduling is Scheduling.DYNAMIC_BATCHING:
        batching = batching_of(config.document)
        line = None
        if batching.preserve_ordering:
            delivery = OrderedDelivery(pass_on)
            line, pass_on = DeliveryLine(delivery), delivery.on_response
        may_dispatch = None if barrier is None else barrier.is_open
        return DynamicBatcher(batching, instances, owner, shape_key_of(config), line, may_dispatch), pass_on
    if config.scheduling is Scheduling.SEQUENCE_BATCHING:
        sequences = sequences_of(config.document)
        output_names = tuple(tensor.name for tensor in config.outputs)
        assert states is not None
        shape_key = shape_key_of(config)
        sequencer = SequenceBatcher(sequences, states, instances, owner, output_names, shape_key, pass_on, barrier)
        return sequencer, sequencer.path
    return DefaultScheduler(instances), pass_on
