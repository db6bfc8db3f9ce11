"""Configurations without the server's package: defaults, and the checks that no meaningful test can do without."""

import json
from typing import Any, Dict, List, Mapping, Optional

from pybackend_sdk.testing.errors import ConfigError
from pybackend_wire.dtypes import BY_CONFIG_NAME

Document = Dict[str, Any]

_FIELDS: Document = {
    "name": "",
    "platform": "",
    "backend": "",
    "runtime": "",
    "max_batch_size": 0,
    "input": [],
    "output": [],
    "batch_input": [],
    "batch_output": [],
    "instance_group": [],
    "default_model_filename": "",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}
_INPUT: Document = {
    "name": "",
    "data_type": "TYPE_INVALID",
    "format": "FORMAT_NONE",
    "dims": [],
    "is_shape_tensor": False,
    "allow_ragged_batch": False,
    "optional": False,
    "is_non_linear_format_io": False,
}
_OUTPUT: Document = {
    "name": "",
    "data_type": "TYPE_INVALID",
    "dims": [],
    "label_filename": "",
    "is_shape_tensor": False,
    "is_non_linear_format_io": False,
}
_GROUP: Document = {
    "name": "",
    "kind": "KIND_CPU",
    "count": 1,
    "gpus": [],
    "secondary_devices": [],
    "profile": [],
    "passive": False,
    "host_policy": "",
}
_COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "sequence_batching", "model_transaction_policy")
"""Fields that a model can complete; other edits have no effect, as in the server."""


def read_json(text: str, source: str) -> Document:
    """Parse a configuration in JSON.

    Raises:
        ConfigError: the text is not JSON, or not an object.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"failed to read model configuration from {source}: it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"failed to read model configuration from {source}: expected a JSON object, got {text[:60]}")
    return document


def filled_document(document: Mapping[str, Any], source: str) -> Document:
    """Return a document with all the fields that models can rely on."""
    filled = {**_FIELDS, **document}
    filled["version_policy"] = filled.get("version_policy") or {"latest": {"num_versions": 1}}
    filled["input"] = _list_of(filled, "input", _INPUT, source)
    filled["output"] = _list_of(filled, "output", _OUTPUT, source)
    return filled


def complete_document(document: Document, completed: Optional[Mapping[str, Any]]) -> Document:
    """Merge the result of the model's ``auto_complete_config`` into a document."""
    if completed is None:
        return document
    return {**document, **{name: completed[name] for name in _COMPLETED if name in completed}}


def finish_document(document: Document, source: str, *, check: bool = True) -> Document:
    """Return the effective document; with ``check``, its tensors must be complete.

    Raises:
        ConfigError: a tensor lacks a name, a datatype or dims.
    """
    document = filled_document(document, source)
    name = document["name"]
    for field in ("input", "output") if check else ():
        for tensor in document[field]:
            _check_tensor(field, tensor, name, source)
    groups = _list_of(document, "instance_group", _GROUP, source) or [{**_GROUP, "name": name}]
    for index, group in enumerate(groups):
        group["name"] = group["name"] or f"{name}_{index}"
        group["count"] = group["count"] or 1
        if group["kind"] == "KIND_AUTO":
            group["kind"] = "KIND_CPU"
    document["instance_group"] = groups
    return document


def _list_of(document: Mapping[str, Any], field: str, defaults: Document, source: str) -> "List[Document]":
    values = document[field]
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, Mapping) for value in values):
        raise ConfigError(
            f"failed to read model configuration from {source}: field '{field}': expected a list of objects, got "
            f"{values!r}"
        )
    for value in values:
        for key in value:
            if key not in defaults and key not in ("reshape", "rate_limiter"):
                raise ConfigError(
                    f"failed to read model configuration from {source}: there is no field '{field}.{key}'. Known: "
                    f"{', '.join(defaults)}."
                )
    return [{**defaults, **value} for value in values]


def _check_tensor(field: str, tensor: Document, model_name: str, source: str) -> None:
    subject = f"model {field} '{tensor['name']}'"
    reason = None
    if not tensor["name"]:
        reason = f"model {field} must specify 'name'"
    elif tensor["data_type"] == "TYPE_INVALID":
        reason = f"{subject} must specify 'data_type'"
    elif tensor["data_type"] not in BY_CONFIG_NAME:
        reason = f"{subject} has data_type '{tensor['data_type']}', which is not one of {', '.join(BY_CONFIG_NAME)},"
    elif not tensor["dims"]:
        reason = f"{subject} must specify 'dims'"
    elif not all(isinstance(dim, int) and (dim >= 1 or dim == -1) for dim in tensor["dims"]):
        reason = f"{subject} dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    if reason is not None:
        raise ConfigError(f"{reason} for {model_name} ({source})")
