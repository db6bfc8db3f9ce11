"""Warnings about outputs that are not as configured: clients get them as they are, so only the log can tell.

Nothing here runs for an output that looks like an earlier one of the same process.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pybackend.model.output_check import NOT_CONFIGURED, known_outputs, output_mismatch
from pybackend.modelconfig.signature import ModelSignature

log = logging.getLogger(__name__)

MOST_WARNINGS = 64
"""Most outputs of a version that are warned of; stubs choose the names."""

MOST_NAME_CHARACTERS = 200

_ADVICE = "The log says this once. VALIDATE_OUTPUTS in the model's parameters turns such responses into errors"


class OutputWarnings:
    """Warns once for each output of a version, whichever instance returns it first.

    Args:
        signature: the version's signature.
        hidden: names of outputs that clients never see.
    """

    def __init__(self, signature: ModelSignature, hidden: frozenset[str]) -> None:
        self._signature = signature
        self._hidden = hidden
        self._warned: set[str] = set()

    def on_new_output(self, name: str, datatype: str, shape: Sequence[int]) -> None:
        """A process has returned an output with this datatype and shape for the first time."""
        signature = self._signature
        expected = signature.outputs.get(name)
        if expected is None or name in self._hidden:
            return
        dims = expected.dims if expected.reshape is None else expected.reshape
        mismatch = output_mismatch(name, datatype, shape, expected, (-1, *dims) if signature.max_batch_size else dims)
        if mismatch:
            self._warn(name, f"{mismatch}. Clients get it as it is.")

    def on_dropped_output(self, name: str) -> None:
        """A process has dropped an output whose name is not configured."""
        name = name[:MOST_NAME_CHARACTERS]
        known = known_outputs(name, self._signature)
        self._warn(name, f"returned output '{name}', {NOT_CONFIGURED}: clients never get it. {known}")

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(name)
            log.warning("model '%s' %s %s", self._signature.model_name, text, _ADVICE)
