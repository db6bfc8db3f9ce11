"""A configuration's ``ensemble_scheduling``: models that run in sequence and in parallel, as one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.model_directory import config_file
from pybackend.modelconfig.parser import parse_config_text, read_config_text
from pybackend.modelconfig.schema import ModelConfig, Scheduling, from_document

Chain = tuple[int, ...]
"""Numbers of decoupled steps, outermost first. A tensor that has passed through them arrives once per response of the
last one. ``()`` stands for a tensor that arrives once per request."""


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
    """The steps of an ensemble, in configured order; empty without ``ensemble_scheduling``."""
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
    """The models in an ensemble, in configured order, each once; empty for any other model."""
    return tuple(dict.fromkeys(step.model_name for step in steps_of(config)))


def part_names_on_disk(model_directory: Path, config_name: str = "") -> tuple[str, ...]:
    """The parts of a model that is not loaded; empty if its configuration cannot be read. Blocking."""
    name = config_file(model_directory, config_name)
    try:
        # Most models are not ensembles, and parsing takes a hundred times longer than this search.
        text = read_config_text(model_directory, name)
        if Scheduling.ENSEMBLE not in text:
            return ()
        document = parse_config_text(text, str(model_directory / name))
    except ModelConfigError:
        return ()
    return tuple(dict.fromkeys(step.model_name for step in _steps(document)))


def most_inflight(config: ModelConfig) -> int:
    """How many requests of one ensemble request a step may have at the same time; 0 for no limit."""
    return int(config.document[Scheduling.ENSEMBLE]["max_inflight_requests"])


def with_decoupled(config: ModelConfig) -> ModelConfig:
    """The configuration of an ensemble that is decoupled because one of its parts is."""
    document = {**config.document, "model_transaction_policy": {"decoupled": True}}
    return from_document(document, config.source).with_warnings(config.warnings)


def needed_tensors(steps: Sequence[EnsembleStep], outputs: Iterable[str]) -> set[str]:
    """The tensors that the given outputs depend on, the outputs included."""
    needed = set(outputs)
    size = -1
    while size != len(needed):
        size = len(needed)
        for step in steps:
            if not needed.isdisjoint(step.outputs.values()):
                needed.update(step.inputs.values())
    return needed


class UnrelatedStreams(Exception):
    """A step needs tensors of different streams, and their responses cannot be matched."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def stream_chains(steps: Sequence[EnsembleStep], decoupled: Sequence[bool]) -> dict[str, Chain]:
    """The streams behind each tensor that a step produces; tensors of the request are not listed.

    Args:
        steps: of an ensemble with a validated graph.

    Raises:
        UnrelatedStreams: a step takes tensors from streams that do not depend on each other.
    """
    made = {tensor for step in steps for tensor in step.outputs.values()}
    chains: dict[str, Chain] = {}
    waiting = {number: made.intersection(step.inputs.values()) for number, step in enumerate(steps)}
    while waiting:
        able = [number for number, needed in waiting.items() if needed <= chains.keys()]
        assert able, "the steps of a validated ensemble do not wait for each other"
        for number in able:
            step = steps[number]
            del waiting[number]
            chain = _joined(number, (chains.get(tensor, ()) for tensor in step.inputs.values()))
            chains |= dict.fromkeys(step.outputs.values(), (*chain, number) if decoupled[number] else chain)
    return chains


def _joined(step: int, chains: Iterable[Chain]) -> Chain:
    longest: Chain = ()
    for chain in chains:
        shorter, longer = sorted((chain, longest), key=len)
        if longer[: len(shorter)] != shorter:
            raise UnrelatedStreams(step)
        longest = longer
    return longest
