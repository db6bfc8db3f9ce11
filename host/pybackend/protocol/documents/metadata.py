"""The small documents: server metadata, model metadata, errors, and the facts about a model's processes.

Front ends send them unmodified.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend_wire.confinement import OFF

_encode = msgspec.json.Encoder().encode


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """The JSON document for ``GET /v2``."""
    return _encode({"name": name, "version": version, "extensions": extensions})


def model_metadata(signature: ModelSignature, versions: Sequence[str], model_platform: str) -> bytes:
    """The JSON document that describes a model's tensors. It has the protocol's members only: some clients are strict.

    ``versions`` are decimal and ascending: the ready ones, or the requested one.
    """
    batching = signature.max_batch_size > 0
    return _encode(
        {
            "name": signature.model_name,
            "versions": versions,
            "platform": model_platform,
            "inputs": tensor_documents(signature.inputs.values(), batching),
            "outputs": tensor_documents(signature.outputs.values(), batching),
        }
    )


def tensor_documents(tensors: Iterable[TensorSignature], batching: bool) -> list[dict[str, Any]]:
    """Name, datatype and shape of each tensor, as clients see them: with the batch dimension if there is one."""
    batch = (-1,) if batching else ()
    return [{"name": tensor.name, "datatype": tensor.datatype, "shape": batch + tensor.dims} for tensor in tensors]


def sandbox_document(confinement: Mapping[str, Any] | None) -> bytes:
    """The JSON document for a model's ``sandbox`` route, which is not the protocol's."""
    return _encode(confinement or {"level": OFF, "not_in_force": {}})


def environment_document(environment: Mapping[str, Any] | None) -> bytes:
    """The JSON document for a model's ``environment`` route, which is not the protocol's."""
    if environment is None:
        return _encode({"path": None, "python": platform.python_version(), "numpy": np.__version__})
    return _encode({name: environment[name] for name in ("path", "python", "numpy")})


def encode_error(message: str) -> bytes:
    """The body of an error: valid JSON for any text (``?`` for lone surrogates)."""
    return _encode({"error": message.encode("utf-8", "replace").decode()})
