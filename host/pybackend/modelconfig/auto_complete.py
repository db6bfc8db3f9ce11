"""Merges the result of a model's ``auto_complete_config`` into its configuration. Used once per load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.bounds import check_extent
from pybackend.modelconfig.parser import FIELD_NAMES, Document, parse_config_json
from pybackend.modelconfig.schema import Scheduling, scheduling_of

_TENSOR_FIELDS = ("max_batch_size", "input", "output")
_SCHEDULING_FIELDS = tuple(str(choice) for choice in Scheduling if choice is not Scheduling.DEFAULT)
_POLICY_FIELD = "model_transaction_policy"


def merge_completed(document: Mapping[str, Any], completed: Mapping[str, Any]) -> Document:
    """The document after auto-completion.

    Only the batch size, the tensors, the decoupled policy and, if none is configured, the scheduler are adopted; every
    other change has no effect.

    Args:
        completed: the document that the model returned: JSON data, checked here.

    Raises:
        ModelConfigError: an adopted part is malformed, or the model chose a scheduler other than the configured one.
    """
    source = f"auto_complete_config of model '{document['name']}'"
    allowed = (*_TENSOR_FIELDS, *_SCHEDULING_FIELDS, _POLICY_FIELD)
    returned = {name: completed[name] for name in allowed if completed.get(name) is not None}
    configured = scheduling_of(document)
    chosen = [name for name in _SCHEDULING_FIELDS if name in returned]
    _check_scheduling(configured, chosen, source)
    if configured is not Scheduling.DEFAULT:
        returned.pop(configured, None)
    check_extent(returned, source)
    complete = parse_config_json(returned, source)
    merged = {**document, **{name: complete[name] for name in returned}}
    return {name: merged[name] for name in FIELD_NAMES if name in merged}


def _check_scheduling(configured: Scheduling, chosen: list[str], source: str) -> None:
    other = next((name for name in chosen if name != configured), None)
    if other is None:
        return
    if configured is not Scheduling.DEFAULT:
        raise ModelConfigError(
            f"Cannot update scheduling choice from {configured} to {other} when auto-completing. "
            f"Change config.pbtxt, or {source}, so that both name the same one.",
            ErrorCode.INTERNAL,
        )
    if len(chosen) > 1:
        raise ModelConfigError(f"{source} set more than one scheduling choice: {', '.join(chosen)}; keep one")
