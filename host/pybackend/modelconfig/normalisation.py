"""Defaults that depend on several fields, filled in so that later readers see explicit values."""

from collections.abc import Mapping, Sequence
from typing import Any

from pybackend.modelconfig.known_backends import DEFAULT_MODEL_FILENAME, PYTHON, known_backend
from pybackend.modelconfig.parser import FIELD_NAMES, Document, parse_config_json
from pybackend.modelconfig.schema import ENSEMBLE_PLATFORM, Scheduling
from pybackend.modelconfig.sequences import DEFAULT_IDLE_US


def with_policies(document: Mapping[str, Any]) -> Document:
    """A document with its version policy and its pinned memory flags filled in, as auto-completion receives it.

    An ensemble has no memory to pin, and must not have the ``optimization`` block with these flags.
    """
    policy = document.get("version_policy") or {"latest": {}}
    if policy.get("latest") is not None:
        policy = {"latest": {"num_versions": policy["latest"].get("num_versions", 0) or 1}}
    changes: Document = {"version_policy": policy}
    if Scheduling.ENSEMBLE not in document and document["platform"] != ENSEMBLE_PLATFORM:
        pinned = {"input_pinned_memory": {"enable": True}, "output_pinned_memory": {"enable": True}}
        changes["optimization"] = {**pinned, **document.get("optimization", {})}
    return replaced(document, changes)


def with_scheduling(document: Mapping[str, Any], gpu_count: int) -> Document:
    """A document with preferred batch sizes, instance groups and transaction policy filled in, and all other defaults set already."""
    changes: Document = {"instance_group": _instance_groups(document, gpu_count)}
    changes["model_transaction_policy"] = document.get("model_transaction_policy", {"decoupled": False})
    batching = document.get("dynamic_batching")
    if batching is not None and not batching["preferred_batch_size"] and document["max_batch_size"] > 0:
        changes["dynamic_batching"] = {**batching, "preferred_batch_size": [document["max_batch_size"]]}
    if "sequence_batching" in document:
        changes["sequence_batching"] = _sequence_batching(document["sequence_batching"], document["max_batch_size"])
    return replaced(document, changes)


def without_gpus(document: Mapping[str, Any]) -> Document | None:
    """A document whose instances run on the CPU instead of GPUs; None if it configures no instance for a GPU.

    A group keeps its ``count``: on several GPUs it would have had that many instances on each.
    """
    groups = document["instance_group"]
    if all(group["kind"] != "KIND_GPU" for group in groups):
        return None
    moved = [{**group, "kind": "KIND_CPU", "gpus": []} if group["kind"] == "KIND_GPU" else group for group in groups]
    return {**document, "instance_group": moved}


def _sequence_batching(batching: Document, max_batch_size: int) -> Document:
    idle_us = batching["max_sequence_idle_microseconds"] or DEFAULT_IDLE_US
    filled = {**batching, "max_sequence_idle_microseconds": idle_us}
    oldest = batching.get("oldest")
    if oldest is not None and not oldest["preferred_batch_size"] and max_batch_size > 0:
        filled["oldest"] = {**oldest, "preferred_batch_size": [max_batch_size]}
    return filled


def replaced(document: Mapping[str, Any], changes: Mapping[str, Any], source: str = "defaults") -> Document:
    """``document`` with some fields replaced by the complete form of ``changes``, in the schema's order."""
    complete = parse_config_json(changes, source)
    merged = {**document, **{name: complete[name] for name in changes}}
    return {name: merged[name] for name in FIELD_NAMES if name in merged}


def _instance_groups(document: Mapping[str, Any], gpu_count: int) -> list[Document]:
    model_name = document["name"]
    configured = document["instance_group"]
    may_choose = known_backend(document["backend"]).on_gpu
    if not configured:
        automatic = {"name": model_name, "kind": "KIND_AUTO", "count": 0, "gpus": []}
        return [_instance_group(automatic, gpu_count, may_choose=may_choose)]
    return [
        _instance_group({**group, "name": group["name"] or f"{model_name}_{index}"}, gpu_count, may_choose=may_choose)
        for index, group in enumerate(configured)
    ]


def _instance_group(group: Document, gpu_count: int, *, may_choose: bool) -> Document:
    """The group with its kind and GPUs; ``may_choose``: whether a kind that is left open may mean GPUs."""
    kind, gpus = group["kind"], group["gpus"]
    if kind == "KIND_AUTO":
        has_gpus = may_choose and gpu_count > 0 and all(0 <= gpu < gpu_count for gpu in gpus)
        kind = "KIND_GPU" if has_gpus else "KIND_CPU"
    if kind == "KIND_GPU" and not gpus:
        gpus = list(range(gpu_count))
    return {**group, "kind": kind, "count": group["count"] or 1, "gpus": gpus}


_FILLED_IN: Sequence[Sequence[str]] = (
    ("version_policy",),
    ("optimization", "input_pinned_memory"),
    ("optimization", "output_pinned_memory"),
    ("optimization",),
    ("instance_group",),
    ("dynamic_batching", "preferred_batch_size"),
    ("sequence_batching", "max_sequence_idle_microseconds"),
    ("sequence_batching", "oldest", "preferred_batch_size"),
    ("model_transaction_policy",),
)
"""The paths of fields that :mod:`normalisation` fills in, inner ones before those around them."""


def minimal_document(document: Mapping[str, Any]) -> Document:
    """The document without its name, and without fields that get the same values when the model is loaded again."""
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
    name, *inner = path
    if name not in document:
        return None
    rest = {key: value for key, value in document.items() if key != name}
    if not inner:
        return rest
    within = _without(document[name], inner)
    return None if within is None else {**document, name: within}
