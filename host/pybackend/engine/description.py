"""Public facts about a model version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pybackend.modelconfig.signature import ModelSignature


@dataclass(frozen=True)
class ModelDescription:
    """The current state of one version.

    Attributes:
        versions: decimal, ascending: all serving versions, or only the version requested by number.
        platform: the configuration's ``platform``, or the name of its backend.
        signature: its inputs and outputs.
        document: its complete configuration.
        confinement: the confinement of its processes, None if they are not confined.
        environment: the Python environment that it brings, None if it runs on the server's Python.
    """

    versions: Sequence[str]
    platform: str
    signature: ModelSignature
    document: Mapping[str, Any]
    confinement: Mapping[str, Any] | None
    environment: Mapping[str, Any] | None
