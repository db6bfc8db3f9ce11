"""Limits on the numbers in a configuration: the server allocates something for each of them, for every model.

The limits lie far above real models, and low enough that neither an author nor an ``auto_complete_config`` can exhaust
memory or time of the other models. docs/operators/limits.md lists them.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from pybackend.errors import ModelConfigError

MOST_CONFIG_BYTES = 2 * 1024 * 1024
"""Of config.pbtxt, or of a configuration given instead. Parsing takes about two seconds per megabyte."""

MOST_VALUES = 500_000
"""Objects, lists and scalars in a document."""

MOST_INSTANCES = 1_000
"""Instances of a model version, in all of its groups."""

MOST_VERSIONS = 10_000
"""Version directories in a model's directory."""

MOST_SERVED_VERSIONS = 1_000
"""Versions of a model loaded at the same time."""

_MOST_TENSORS = 10_000
_MOST_DIMENSIONS = 64
"""numpy's maximum."""

_MOST_TAG_CHARACTERS = 10_000
"""All tags together: each of the model's metrics repeats them."""

BOUNDS: Mapping[str, int] = {
    "input": _MOST_TENSORS,
    "input.dims": _MOST_DIMENSIONS,
    "input.reshape.shape": _MOST_DIMENSIONS,
    "output": _MOST_TENSORS,
    "output.dims": _MOST_DIMENSIONS,
    "output.reshape.shape": _MOST_DIMENSIONS,
    "batch_input": _MOST_TENSORS,
    "batch_output": _MOST_TENSORS,
    "version_policy.specific.versions": MOST_SERVED_VERSIONS,
    "instance_group": MOST_INSTANCES,
    "instance_group.count": MOST_INSTANCES,
    "instance_group.gpus": MOST_INSTANCES,
    "instance_group.rate_limiter.resources": 1_000,
    "dynamic_batching.preferred_batch_size": 1_000,
    "dynamic_batching.priority_levels": 1_000,
    "dynamic_batching.priority_queue_policy": 1_000,
    "sequence_batching.control_input": 100,
    "sequence_batching.control_input.control": 100,
    "sequence_batching.oldest.max_candidate_sequences": 1_000_000,
    "sequence_batching.oldest.preferred_batch_size": 1_000,
    "sequence_batching.state": 1_000,
    "sequence_batching.state.dims": _MOST_DIMENSIONS,
    "sequence_batching.state.initial_state": 100,
    "sequence_batching.state.initial_state.dims": _MOST_DIMENSIONS,
    "ensemble_scheduling.step": 1_000,
    "ensemble_scheduling.step.input_map": 1_000,
    "ensemble_scheduling.step.output_map": 1_000,
    "model_warmup": 1_000,
    "model_warmup.batch_size": 10_000,
    "model_warmup.count": 1_000_000,
    "model_warmup.inputs": _MOST_TENSORS,
    "model_warmup.inputs.*.dims": _MOST_DIMENSIONS,
    "model_metrics.metric_control": 1_000,
    "model_metrics.metric_control.histogram_options.buckets": 1_000,
    "metric_tags": 100,
    "parameters": 10_000,
}
"""By field, with ``*`` for every key of a map: the maximum number of entries, or the maximum value of a number."""


def check_bounds(document: Mapping[str, Any], source: str) -> None:
    """Refuse a complete document in which a number is out of bounds."""
    for field, most in BOUNDS.items():
        for value in _values(document, field.split(".")):
            number, unit = (value, "") if isinstance(value, int) else (len(value), " entries")
            if number > most:
                raise _too_large(document, field.replace(".*", ""), f"{number}{unit}", most, source)
    characters = sum(len(key) + len(value) for key, value in document["metric_tags"].items())
    if characters > _MOST_TAG_CHARACTERS:
        raise _too_large(document, "metric_tags", f"{characters} characters", _MOST_TAG_CHARACTERS, source)
    groups = document["instance_group"]
    count = sum(max(1, group["count"]) * max(1, len(group["gpus"])) for group in groups)
    if count > MOST_INSTANCES:
        raise _too_large(document, "instance_group", f"{count} instances in all groups", MOST_INSTANCES, source)


def _too_large(document: Mapping[str, Any], field: str, value: str, most: int, source: str) -> ModelConfigError:
    return ModelConfigError(
        f"'{field}' of model '{document['name']}' is too large: {value}, and the most is {most} ({source})"
    )


def check_extent(document: object, source: str) -> None:
    """Refuse JSON data that is too large to process further."""
    values, characters = 1, 0
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping | list | tuple):
            values += len(value)
            if values <= MOST_VALUES:
                waiting.extend(chain.from_iterable(value.items()) if isinstance(value, Mapping) else value)
        if values > MOST_VALUES or characters > MOST_CONFIG_BYTES:
            raise ModelConfigError(
                f"{source} returned a configuration that is too large: the most is {MOST_VALUES} values and "
                f"{MOST_CONFIG_BYTES} characters"
            )


def _values(document: Any, path: list[str]) -> Iterator[Any]:
    """The values at a path of a document, for every entry of the lists and maps along the path."""
    if not path:
        yield document
        return
    for entry in document if isinstance(document, list) else (document,):
        if path[0] == "*":
            for value in entry.values():
                yield from _values(value, path[1:])
        elif path[0] in entry:
            yield from _values(entry[path[0]], path[1:])
