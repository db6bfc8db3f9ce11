"""The JSON documents of the model repository extension: the index, and requests to load and unload."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from pybackend.errors import ErrorCode, InferenceError
from pybackend.protocol.json_document import as_bool, as_object, as_string, parse_document

CONFIG, UNLOAD_DEPENDENTS = "config", "unload_dependents"
FILE_PREFIX = "file:"

REPOSITORY_NAMED = InferenceError(
    "'repository_name' specification is not supported: leave it out, this server searches all its repositories",
    ErrorCode.UNSUPPORTED,
)

_encode = msgspec.json.Encoder().encode


class IndexRow(Protocol):
    """A row of the index.

    Attributes:
        name: the model's name.
        version: decimal, ``""`` if it has none.
        state: the stage of the version's life, ``""`` for a model that was never loaded.
        reason: why it is not available, ``""`` if it is.
        namespace: the model's, ``""`` on a server without namespaces.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def namespace(self) -> str: ...


def index_document(rows: Iterable[IndexRow]) -> bytes:
    """The JSON document for the repository index."""
    return _encode([_index_member(row) for row in rows])


def _index_member(row: IndexRow) -> dict[str, str]:
    member = {"name": row.name}
    if row.namespace:
        member["namespace"] = row.namespace
    if row.state:
        member |= {"version": row.version, "state": row.state}
    if row.reason:
        member["reason"] = row.reason
    return member


def parse_index_request(body: bytes) -> bool:
    """True if the index is to have ready versions only.

    Raises:
        InferenceError: INTERNAL for JSON syntax, INVALID_ARG for a value that is not a boolean.
    """
    ready = _document(body).get("ready", False)
    if type(ready) is not bool:
        raise InferenceError("Invalid value for 'ready': expected a boolean, true or false", ErrorCode.INVALID_ARG)
    return ready


def parse_load_request(body: bytes) -> tuple[str | None, dict[str, bytes]]:
    """The configuration and the files in a load request: None and empty if there are none. Blocking for large files.

    Raises:
        InferenceError: INTERNAL for JSON syntax and types, and for unknown parameters; INVALID_ARG for a file that is not
            base64.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, value in _parameters(body).items():
        text = as_string(value, name)
        if name == CONFIG:
            config = text
        elif name.startswith(FILE_PREFIX):
            files[name] = _decoded(name, text)
        else:
            raise InferenceError(f"unexpected error on creating Triton parameter: {unknown_parameter(name)}")
    return config, files


def unknown_parameter(name: str) -> str:
    """The sentence about a parameter that a load request does not have."""
    return f"unrecognized load parameter '{name[:200]}'. Parameters are '{CONFIG}' and '{FILE_PREFIX}<path in the model's folder>'"


def parse_unload_request(body: bytes) -> bool:
    """True if the parts of an ensemble should be unloaded with it.

    Raises:
        InferenceError: INTERNAL for JSON syntax and types.
    """
    return as_bool(_parameters(body).get(UNLOAD_DEPENDENTS, False), UNLOAD_DEPENDENTS)


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InferenceError(f"the content of '{name}' is not base64: {error}", ErrorCode.INVALID_ARG) from None


def _document(body: bytes) -> dict[str, Any]:
    return as_object(parse_document(body), "the request") if body.strip() else {}


def _parameters(body: bytes) -> dict[str, Any]:
    return as_object(_document(body).get("parameters", {}), "parameters")
