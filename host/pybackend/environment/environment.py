"""The Python environment of a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A Python interpreter with its packages, ready to start.

    Attributes:
        identity: equal for environments whose models may share a zygote; not part of any path.
        prefix: its directory, None for the host's own Python.
        variables: variables that activation sets, in addition to those that models inherit from the host.
    """

    python: Path
    identity: str
    prefix: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_foreign(self) -> bool:
        """True if its interpreter differs from the server's."""
        return str(self.python) != sys.executable


HOST_ENVIRONMENT = Environment(Path(sys.executable), "host")
"""The server's own Python, with its installed packages."""
