"""A configuration's ``ensemble_scheduling``: models that run in sequence and in parallel, as one model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.model_directory import config_file
from pybackend.modelconfig.parser import parse_config_text, read_config_text
from pybackend.modelconfig.schema import ENSEMBLE_PLATFORM, ModelConfig, Scheduling, from_document
from pybackend.modelconfig.validation import validate_interface

Chain = tuple[int, ...]
"""Numbers of decoupled steps, outermost first. A tensor that has passed through them arrives once per response of the
last one. ``()`` stands for a tensor that arrives once per request."""


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble."""

    model_name: str
    model_version: str  # decimal, ``""`` for the newest
    inputs: Mapping[str, str]  # ensemble tensor by the model's input
    outputs: Mapping[str, str]  # ensemble tensor by the model's output


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


def circle_of(name: str, following: Callable[[str], Iterable[str]]) -> list[str]:
    """The way from a name by those that follow it back to itself, with the name at both ends.

    Empty if there is none.
    """
    paths, seen = [[name]], {name}
    while paths:
        path = paths.pop()
        for each in following(path[-1]):
            if each == name:
                return [*path, each]
            if each not in seen:
                seen.add(each)
                paths.append([*path, each])
    return []


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

    Raises UnrelatedStreams: a step takes tensors from streams that do not depend on each other.
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
    for each in chains:
        shorter, longer = sorted((each, longest), key=len)
        if longer[: len(shorter)] != shorter:
            raise UnrelatedStreams(step)
        longest = longer
    return longest


def validate_connections(config: ModelConfig, parts: Sequence[ModelConfig]) -> None:
    """Check an ensemble against its parts."""
    for text in _faults(config, steps_of(config), parts):
        raise ModelConfigError(f"{text} ({config.source})")


def _faults(config: ModelConfig, steps: Sequence[EnsembleStep], parts: Sequence[ModelConfig]) -> Iterator[str]:
    for step, part in zip(steps, parts, strict=True):
        yield from _part_faults(config, step, part)
    tensors = _Tensors(config)
    for step, part in zip(steps, parts, strict=True):
        yield from tensors.faults(step, part)
    yield from _stream_faults(config.name, steps, parts)


def _part_faults(config: ModelConfig, step: EnsembleStep, part: ModelConfig) -> Iterator[str]:
    """Unknown tensor names, unmapped inputs and the batch size."""
    inputs = {tensor.name: tensor for tensor in part.inputs}
    outputs = {tensor.name for tensor in part.outputs}
    about = f"in ensemble {config.name}, "
    for inner, tensor in step.inputs.items():
        if inner not in inputs:
            text = f"{about}ensemble tensor {tensor} is mapping to non-existing input {inner} in model {part.name}"
            yield f"{text}. It has {_listed(inputs)}"
    for inner, tensor in step.outputs.items():
        if inner not in outputs:
            text = f"{about}ensemble tensor {tensor} is mapped from non-existing output {inner} in model {part.name}"
            yield f"{text}. It has {_listed(outputs)}"
    for inner, expected in inputs.items():
        if inner not in step.inputs and not expected.optional:
            yield f"{about}input {inner} in model {part.name} is not mapped to any ensemble tensors"
    # A part without batching is allowed here: shapes are compared below.
    if 0 < part.max_batch_size < config.max_batch_size:
        yield (
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{part.name} which only allows maximum batch size to be {part.max_batch_size}"
        )


def _listed(names: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


@dataclass(frozen=True, slots=True)
class _Inferred:
    """A model's view of a tensor."""

    model_name: str
    data_type: str
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]


class _Tensors:
    """Known properties of the ensemble's tensors: the first model that declares a tensor defines it."""

    def __init__(self, config: ModelConfig) -> None:
        self._name = config.name
        self._known: dict[str, _Inferred] = {}
        for field, tensors in (("input", config.inputs), ("output", config.outputs)):
            for tensor, document in zip(tensors, config.document[field], strict=True):
                # A reshape applies between clients and the model: inside the ensemble, tensors have the inner shape.
                inner = tensor.dims if tensor.reshape is None else tensor.reshape
                self._known[tensor.name] = _inferred(config, inner, document)

    def faults(self, step: EnsembleStep, part: ModelConfig) -> Iterator[str]:
        """Contradictions between a part and the known tensors; tensors seen first here are recorded."""
        for field, tensors, names in (("input", part.inputs, step.inputs), ("output", part.outputs, step.outputs)):
            for tensor, document in zip(tensors, part.document[field], strict=True):
                if tensor.name in names:
                    name = names[tensor.name]
                    new = _inferred(part, tensor.dims, document)
                    yield from self._contradictions(name, self._known.setdefault(name, new), new)

    def _contradictions(self, tensor: str, known: _Inferred, new: _Inferred) -> Iterator[str]:
        about = f"in ensemble {self._name}, ensemble tensor {tensor}: inconsistent"
        if known.data_type != new.data_type:
            yield (
                f"{about} data type: {known.data_type} is inferred from model {known.model_name} while "
                f"{new.data_type} is inferred from model {new.model_name}"
            )
        # Models with and without batching may share a tensor if one's first dimension can be the other's batch.
        if not _fit(known.dims, new.dims) and not _fit(known.full_dims, new.full_dims):
            yield (
                f"{about} shape: {_shape_text(known.full_dims)} is inferred from model {known.model_name} while "
                f"{_shape_text(new.full_dims)} is inferred from model {new.model_name}"
            )


def _inferred(config: ModelConfig, dims: tuple[int, ...], document: Mapping[str, Any]) -> _Inferred:
    batch = (-1,) if config.max_batch_size else ()
    return _Inferred(config.name, document["data_type"], dims, (*batch, *dims))


def _fit(dims: Sequence[int], others: Sequence[int]) -> bool:
    """True if some shape satisfies both; variable dimensions are checked per request."""
    return len(dims) == len(others) and all(
        dim == other or -1 in {dim, other} for dim, other in zip(dims, others, strict=True)
    )


def _shape_text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _stream_faults(name: str, steps: Sequence[EnsembleStep], parts: Sequence[ModelConfig]) -> Iterator[str]:
    try:
        stream_chains(steps, [part.decoupled for part in parts])
    except UnrelatedStreams as error:
        yield (
            f"in ensemble {name}, step of model '{steps[error.step].model_name}' receives inputs originated from "
            "different decoupled models. Which responses of the one belong to which of the other, nobody can tell"
        )


def validate_ensemble(config: ModelConfig) -> None:
    """Check everything that needs no other model."""
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
