"""The model and version in a request's path, their description in OpenAPI, and the client's address.

Routes write a version as ``{version:digits}``, because Starlette's ``int`` raises for more than 4,300 digits.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from starlette.convertors import Convertor, register_url_convertor

_INFER_TARGET = re.compile(rb"/v2/models/([^/?]+)(?:/versions/([0-9]+))?/infer(?:\?.*)?")

_PARAMETERS: dict[str, dict[str, Any]] = {
    "{model_name}": {"schema": {"type": "string"}, "description": "the model's name"},
    "{version:digits}": {"schema": {"type": "integer", "minimum": 0}, "description": "a version of the model"},
}


def plain_version(digits: str) -> str:
    """A version without leading zeros."""
    return digits.lstrip("0") or "0"


def infer_target(target: bytes) -> tuple[str, str] | None:
    """The model's name and the version in the target of an infer request, ``""`` for none; None for other targets.

    A slash within the name, which is written ``%2F``, makes it another path, as it does for all other routes.
    """
    found = _INFER_TARGET.fullmatch(target)
    if found is None:
        return None
    name = unquote(found[1].decode("latin-1"), "utf-8", "replace")
    return None if "/" in name else (name, plain_version(found[2].decode()) if found[2] else "")


class _Digits(Convertor[str]):
    """A decimal number as text, without leading zeros."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return plain_version(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digits", _Digits())


def model_path(path: str) -> list[dict[str, Any]]:
    """The OpenAPI parameters of a route's path."""
    return [
        {"name": part.strip("{}").partition(":")[0], "in": "path", "required": True, **description}
        for part, description in _PARAMETERS.items()
        if part in path
    ]


def model_name(request: Request) -> str:
    """The model in a request's path."""
    name: str = request.path_params["model_name"]
    return name


def version(request: Request) -> str:
    """The version in a request's path, ``""`` if it has none."""
    digits: str = request.path_params.get("version", "")
    return digits


def client_address(request: Request) -> str:
    """``host:port`` of the client, ``""`` if it is unknown."""
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"
