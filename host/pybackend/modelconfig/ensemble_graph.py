"""Checks of an ensemble's configuration that need no other model: whether its steps form a valid graph.

Runs once per load. ``ensemble_connections`` holds the checks against the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.ensemble import EnsembleStep, needed_tensors, steps_of
from pybackend.modelconfig.schema import ENSEMBLE_PLATFORM, ModelConfig
from pybackend.modelconfig.validation import validate_interface


def validate_ensemble(config: ModelConfig) -> None:
    """Check everything that needs no other model.

    Raises:
        ModelConfigError: INVALID_ARG, the first rule broken.
    """
    for text in _placement_faults(config):
        raise ModelConfigError(f"{text} ({config.source})")
    for field, tensors in (("input", config.inputs), ("output", config.outputs)):
        if not tensors:
            raise ModelConfigError(
                f"must specify '{field}' for {config.name}. Add an {field} block to config.pbtxt. ({config.source})"
            )
    validate_interface(config)
    steps = steps_of(config)
    for text in chain(_step_faults(config.name, steps), _graph_faults(config, steps)):
        raise ModelConfigError(f"{text} ({config.source})")


def _placement_faults(config: ModelConfig) -> Iterator[str]:
    """Fields that an ensemble requires or forbids."""
    name, document = config.name, config.document
    if config.platform != ENSEMBLE_PLATFORM or config.backend:
        yield (
            f"Ensemble model '{name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type. It has "
            f"platform '{config.platform}' and backend '{config.backend}'"
        )
    if document["instance_group"]:
        yield (
            f"instance group should not be specified for ensemble '{name}'. An ensemble runs no processes itself: "
            "give its parts instance groups"
        )
    if "optimization" in document:
        yield f"optimization should not be specified for ensemble '{name}'. Its parts may have it"
    if document["model_warmup"]:
        yield f"model_warmup can not be specified for ensemble '{name}'. Its parts may have it"


def _step_faults(name: str, steps: Sequence[EnsembleStep]) -> Iterator[str]:
    """Missing fields of the steps."""
    if not steps:
        yield f"must specify 'step' for ensemble '{name}'. See ensemble_scheduling"
    for number, step in enumerate(steps):
        if not step.model_name:
            yield f"must specify 'model_name' in step {number} of ensemble '{name}'"
        about = f"in step {number} of ensemble '{name}'. It runs '{step.model_name}'"
        if not step.inputs:
            yield f"must specify 'input_map' {about}: {{ key: <its input> value: <ensemble tensor> }}"
        if not step.outputs:
            yield f"must specify 'output_map' {about}: {{ key: <its output> value: <ensemble tensor> }}"


def _graph_faults(config: ModelConfig, steps: Sequence[EnsembleStep]) -> Iterator[str]:
    name = config.name
    inputs = [tensor.name for tensor in config.inputs]
    outputs = [tensor.name for tensor in config.outputs]
    writer = dict.fromkeys(inputs, "the request")
    for number, step in enumerate(steps):
        for tensor in step.outputs.values():
            if tensor in writer:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' step "
                    f"{number}. It comes from {writer[tensor]}, too"
                )
            writer[tensor] = f"step {number}"
    taken = {tensor for step in steps for tensor in step.inputs.values()}
    for tensor in inputs:
        if tensor not in taken:
            yield f"ensemble input '{tensor}' for ensemble {name}' is not used. No step's input_map names it"
    for tensor in outputs:
        if tensor not in writer and tensor not in taken:
            yield f"ensemble output '{tensor}' for ensemble {name}' is not used. No step's output_map names it"
    there = _available(inputs, steps)
    for tensor in outputs:
        if tensor not in there:
            yield f"output '{tensor}' for ensemble '{name}' is not written: {_why_missing(tensor, there, steps)}"
    leading = needed_tensors(steps, outputs)
    for tensor in (tensor for step in steps for tensor in step.outputs.values()):
        if tensor not in leading:
            yield (
                f"ensemble tensor '{tensor}' is unused in ensemble '{name}'. No output depends on it: leave it out of "
                "the output_map, and a step that makes nothing else out of the ensemble"
            )


def _available(inputs: Sequence[str], steps: Sequence[EnsembleStep]) -> set[str]:
    """The tensors that exist after every runnable step has run."""
    there = set(inputs)
    waiting = list(steps)
    while True:
        able = [step for step in waiting if there.issuperset(step.inputs.values())]
        if not able:
            return there
        there.update(tensor for step in able for tensor in step.outputs.values())
        waiting = [step for step in waiting if step not in able]


def _why_missing(tensor: str, there: set[str], steps: Sequence[EnsembleStep]) -> str:
    """Follow a tensor's dependencies to one that no step produces, or around a circle."""
    path = [tensor]
    while True:
        maker = next((step for step in steps if path[-1] in step.outputs.values()), None)
        if maker is None:
            leads = f", which '{tensor}' depends on, is" if len(path) > 1 else " is"
            return f"'{path[-1]}'{leads} in no step's output_map and no input of the ensemble"
        missing = next(each for each in maker.inputs.values() if each not in there)
        if missing in path:
            circle = [*path[path.index(missing) :], missing]
            return f"the steps wait for each other's tensors: {' <- '.join(circle)}"
        path.append(missing)
