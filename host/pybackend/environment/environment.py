"""A Python that models run in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A Python with its packages, ready to be started.

    Attributes:
        python: the interpreter.
        identity: equal for environments whose models may share a process to fork from; part of no path.
        prefix: the directory it lies in, None for the host's own Python.
        variables: what activating it sets, on top of what models inherit from the host.
    """

    python: Path
    identity: str
    prefix: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_foreign(self) -> bool:
        """True if the interpreter is not the one that the server itself runs on."""
        return str(self.python) != sys.executable


HOST_ENVIRONMENT = Environment(Path(sys.executable), "host")
"""The Python that the server itself runs in, with the packages beside it."""
