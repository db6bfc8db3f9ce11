"""The pools of an application on several machines: each has some of the models, and servers for these.

``pybackend serve --on=ray`` writes the file that each server reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from pybackend.errors import ServerError

DEFAULT_POOL = "default"
"""The pool of models that no other one names."""


@dataclass(frozen=True)
class Pools:
    """The pools, as one server sees them.

    Attributes:
        own: the name of this server's pool.
        models: the pool of each model that is not in the default pool.
        servers: the addresses for gRPC of each pool's servers.
        headers: that these servers demand of each call.
    """

    own: str
    models: Mapping[str, str]
    servers: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]

    def of(self, model: str) -> str:
        """The name of a model's pool."""
        return self.models.get(model, DEFAULT_POOL)

    def has(self, model: str) -> bool:
        """True if a model belongs to this server's pool."""
        return self.of(model) == self.own

    def text(self) -> str:
        """The contents of the file."""
        return json.dumps(asdict(self))


def read_pools(file: Path) -> Pools:
    """The contents of such a file. Raises ServerError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Pools)
    except OSError as error:
        raise ServerError(f"cannot read the pools in {file}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ServerError(
            f"{file} does not name pools: {error}. `pybackend serve --on=ray --pool=...` writes it"
        ) from None
