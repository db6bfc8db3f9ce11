"""Takes out of a configuration what the server fills in by itself. Used to write configurations, never to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, PYTHON
from pybackend.modelconfig.normalisation import with_policies, with_scheduling
from pybackend.modelconfig.parser import Document, parse_config_json

_FILLED_IN: Sequence[Sequence[str]] = (
    ("version_policy",),
    ("optimization", "input_pinned_memory"),
    ("optimization", "output_pinned_memory"),
    ("optimization",),
    ("instance_group",),
    ("dynamic_batching", "preferred_batch_size"),
    ("sequence_batching", "max_sequence_idle_microseconds"),
    ("sequence_batching", "oldest", "preferred_batch_size"),
)
"""The paths of fields that :mod:`normalisation` fills in, inner ones before those around them."""


def minimal_document(document: Mapping[str, Any]) -> Document:
    """The document without its name, and without fields that get the same values when the model is loaded again.

    Raises:
        ModelConfigError: it is malformed.
    """
    wanted = _filled(document)
    reduced = dict(document)
    for path in _FILLED_IN:
        fewer = _without(reduced, path)
        if fewer is not None and _filled(fewer) == wanted:
            reduced = fewer
    reduced.pop("name", None)
    # The loader fills these in before anything else.
    field = "default_model_filename" if document.get("backend") == PYTHON else "runtime"
    if reduced.get(field) == DEFAULT_MODEL_FILENAME:
        reduced.pop(field)
    return reduced


def _filled(document: Mapping[str, Any]) -> Document:
    complete = parse_config_json(document, "a configuration to be written")
    return with_scheduling(with_policies(complete), gpu_count=0)


def _without(document: Mapping[str, Any], path: Sequence[str]) -> Document | None:
    """The document without one field, None if it has none there."""
    name, *inner = path
    if name not in document:
        return None
    rest = {key: value for key, value in document.items() if key != name}
    if not inner:
        return rest
    within = _without(document[name], inner)
    return None if within is None else {**document, name: within}
