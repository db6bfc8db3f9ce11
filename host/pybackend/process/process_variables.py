"""The environment variables of a model's process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pybackend.environment.environment import Environment

_LEFT_OUT = ("LD_PRELOAD", "LD_AUDIT")
_LEFT_OUT_PREFIXES = ("PYTHON", "PYBACKEND_")
"""The second are settings of the server, which may be secret."""


def process_variables(environment: Environment, host: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return host and environment variables, without those that change which code the stub's Python runs."""
    inherited = {
        name: value for name, value in host.items() if not name.startswith(_LEFT_OUT_PREFIXES) and name not in _LEFT_OUT
    }
    return {**inherited, **environment.variables}
