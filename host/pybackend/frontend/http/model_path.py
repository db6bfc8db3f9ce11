"""The model and the version that a path names: reading them from a request, and describing them in OpenAPI."""

from __future__ import annotations

from typing import Any

from fastapi import Request

_PARAMETERS: dict[str, dict[str, Any]] = {
    "{model_name}": {"schema": {"type": "string"}, "description": "the model's name"},
    "{version:int}": {"schema": {"type": "integer", "minimum": 0}, "description": "a version of the model"},
}


def model_path(path: str) -> list[dict[str, Any]]:
    """The OpenAPI parameters of a route's path."""
    return [
        {"name": part.strip("{}").partition(":")[0], "in": "path", "required": True, **description}
        for part, description in _PARAMETERS.items()
        if part in path
    ]


def model_name(request: Request) -> str:
    """The model that a request's path names."""
    name: str = request.path_params["model_name"]
    return name


def version(request: Request) -> str:
    """The version that a request's path names, ``""`` if it names none."""
    number = request.path_params.get("version")
    return "" if number is None else str(number)
