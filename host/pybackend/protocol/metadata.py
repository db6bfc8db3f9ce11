"""The protocol's small documents: server metadata, model metadata, errors.

Front ends send them unmodified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pybackend.modelconfig.signature import ModelSignature, TensorSignature

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Names and order are defined by the protocol; clients read the list to learn which features are available."""

_encode = msgspec.json.Encoder().encode


def server_metadata(name: str, version: str, extensions: Sequence[str] = EXTENSIONS) -> bytes:
    """The JSON document for ``GET /v2``.

    Args:
        name: the server's id.
        version: the server's version.
        extensions: the supported extensions of the base protocol.
    """
    return _encode({"name": name, "version": version, "extensions": extensions})


def model_metadata(
    signature: ModelSignature,
    versions: Sequence[str],
    platform: str,
    confinement: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON document that describes a model's tensors.

    Args:
        signature: of the highest version in ``versions``.
        versions: decimal, ascending: the ready ones, or the requested one.
        platform: the configuration's ``platform``, or its backend's name.
        confinement: facts about its sandbox, None if it has none.
        environment: facts about its own Python environment, None if it uses the server's.
    """
    batching = signature.max_batch_size > 0
    document: dict[str, Any] = {
        "name": signature.model_name,
        "versions": versions,
        "platform": platform,
        "inputs": _tensors(signature.inputs.values(), batching),
        "outputs": _tensors(signature.outputs.values(), batching),
    }
    own = {"sandbox": confinement, "environment": environment}
    return _encode({**document, **{name: facts for name, facts in own.items() if facts is not None}})


def _tensors(tensors: Iterable[TensorSignature], batching: bool) -> list[dict[str, Any]]:
    batch = (-1,) if batching else ()
    return [{"name": tensor.name, "datatype": tensor.datatype, "shape": batch + tensor.dims} for tensor in tensors]


def encode_error(message: str) -> bytes:
    """The body of an error: valid JSON for any text (``?`` for lone surrogates)."""
    return _encode({"error": message.encode("utf-8", "replace").decode()})
