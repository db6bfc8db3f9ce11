"""Checks that an ensemble's tensors fit the models that produce and consume them. Runs once the parts are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.ensemble import EnsembleStep, UnrelatedStreams, steps_of, stream_chains
from pybackend.modelconfig.schema import ModelConfig, Scheduling


def validate_connections(config: ModelConfig, parts: Sequence[ModelConfig]) -> None:
    """Check an ensemble against its parts.

    Args:
        config: of the ensemble, with a validated graph.

    Raises:
        ModelConfigError: INVALID_ARG; the first mismatch.
    """
    for text in _faults(config, steps_of(config), parts):
        raise ModelConfigError(f"{text} ({config.source})")


def validate_cache(config: ModelConfig, runs_in: Iterable[ModelConfig]) -> None:
    """Refuse a response cache for an ensemble with a part that cannot have one.

    Args:
        runs_in: configurations of all models that the ensemble runs, including those of nested ensembles.

    Raises:
        ModelConfigError: INVALID_ARG; it has such a part.
    """
    for part in runs_in:
        for reason, holds in (
            ("sequence batching scheduler", part.scheduling is Scheduling.SEQUENCE_BATCHING),
            ("'decoupled' transaction policy", part.decoupled),
        ):
            if holds and config.response_cache_enabled:
                raise ModelConfigError(
                    f"Response Cache does not currently support model {config.name} with {reason}. Please disable the "
                    f"response cache. Its part '{part.name}' is such a model ({config.source})"
                )


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
