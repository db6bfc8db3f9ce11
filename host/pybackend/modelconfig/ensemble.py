"""A configuration's ``ensemble_scheduling``: models that are run one after another, and side by side, as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME
from pybackend.modelconfig.parser import read_config_file
from pybackend.modelconfig.schema import ModelConfig, Scheduling, from_document

Chain = tuple[int, ...]
"""Numbers of steps that answer with streams, outermost first: a tensor that has come through them comes once per response
of the last one. ``()`` is what comes once per request."""


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble.

    Attributes:
        model_name: the model.
        model_version: decimal, ``""`` for the newest.
        inputs: ensemble tensor by the model's input.
        outputs: ensemble tensor by the model's output.
    """

    model_name: str
    model_version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def steps_of(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    """The steps of an ensemble, in configured order; none if it has no ``ensemble_scheduling``."""
    return _steps(config.document)


def _steps(document: Mapping[str, Any]) -> tuple[EnsembleStep, ...]:
    return tuple(
        EnsembleStep(
            model_name=step["model_name"],
            model_version="" if step["model_version"] < 0 else str(step["model_version"]),
            inputs=step["input_map"],
            outputs=step["output_map"],
        )
        for step in document.get(Scheduling.ENSEMBLE, {}).get("step", ())
    )


def part_names(config: ModelConfig) -> tuple[str, ...]:
    """The models that an ensemble consists of, in configured order, each once; none for any other model."""
    return tuple(dict.fromkeys(step.model_name for step in steps_of(config)))


def part_names_on_disk(model_directory: Path) -> tuple[str, ...]:
    """The same of a model that is not loaded; none, too, if its configuration cannot be read. Blocking."""
    path = model_directory / CONFIG_FILENAME
    try:
        # Most models are no ensembles, and parsing takes a hundred times longer than this look.
        if str(Scheduling.ENSEMBLE).encode() not in path.read_bytes():
            return ()
        document = read_config_file(path)
    except (OSError, ModelConfigError):
        return ()
    return tuple(dict.fromkeys(step.model_name for step in _steps(document)))


def most_inflight(config: ModelConfig) -> int:
    """How many requests of one ensemble request may be with one step at the same time; 0 if nothing is said."""
    return int(config.document[Scheduling.ENSEMBLE]["max_inflight_requests"])


def with_decoupled(config: ModelConfig) -> ModelConfig:
    """The configuration of an ensemble that answers with streams because one of its parts does."""
    document = {**config.document, "model_transaction_policy": {"decoupled": True}}
    return from_document(document, config.source).with_warnings(config.warnings)


def needed_tensors(steps: Sequence[EnsembleStep], outputs: Iterable[str]) -> set[str]:
    """The tensors that some of these outputs depend on, the outputs included."""
    needed = set(outputs)
    size = -1
    while size != len(needed):
        size = len(needed)
        for step in steps:
            if not needed.isdisjoint(step.outputs.values()):
                needed.update(step.inputs.values())
    return needed


class UnrelatedStreams(Exception):
    """A step would need tensors of different streams, and nobody can tell which of them belong together.

    Attributes:
        step: its number.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def stream_chains(steps: Sequence[EnsembleStep], decoupled: Sequence[bool]) -> dict[str, Chain]:
    """The streams through which each tensor that a step makes has come; what is not in there comes with the request.

    Args:
        steps: of an ensemble whose graph is validated.
        decoupled: for each step, whether its model answers with streams.

    Raises:
        UnrelatedStreams: a step takes tensors from streams that do not follow from each other.
    """
    made = {tensor for step in steps for tensor in step.outputs.values()}
    chains: dict[str, Chain] = {}
    waiting = list(range(len(steps)))
    while waiting:
        for number in waiting:
            step = steps[number]
            if made.isdisjoint(set(step.inputs.values()) - chains.keys()):
                chain = _joined(number, (chains.get(tensor, ()) for tensor in step.inputs.values()))
                chains |= dict.fromkeys(step.outputs.values(), (*chain, number) if decoupled[number] else chain)
                waiting.remove(number)
                break
        else:
            raise AssertionError("the steps of a validated ensemble do not wait for each other")
    return chains


def _joined(step: int, chains: Iterable[Chain]) -> Chain:
    longest: Chain = ()
    for chain in chains:
        shorter, longer = sorted((chain, longest), key=len)
        if longer[: len(shorter)] != shorter:
            raise UnrelatedStreams(step)
        longest = longer
    return longest
