"""What the log says once the models are loaded: a table of few models, and one summary of any number."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from pybackend.observability.log_lines import one_line
from pybackend.observability.logging import DETAIL
from pybackend.repository.entry import ModelStatus
from pybackend.settings import Settings

log = logging.getLogger(__name__)

LONGEST_TABLE = 20
"""Rows of the longest table: beyond a screenful, an operator wants the failures and the count of the others."""

_REASON_LENGTH = 1000


class StartReport:
    """The outcome of the start.

    Args:
        is_told: the report follows the lines about failed loads. Then its summary repeats no reasons, unless they are more
            than a screenful away.
    """

    def __init__(self, rows: Sequence[ModelStatus], took_s: float, *, is_told: bool = True) -> None:
        self._rows = rows
        self._is_told = is_told and len(rows) <= LONGEST_TABLE
        self._took_s = took_s
        self._failures = [row for row in rows if not row.is_ready]

    def log(self, settings: Settings, *, with_summary: bool) -> None:
        """Write the outcome to the log.

        Args:
            with_summary: False if :meth:`fatal` will be the server's last words.
        """
        for name in sorted(
            set(settings.debug.models) - {name for row in self._rows for name in (row.name, row.full_name)}
        ):
            log.warning("--debug %s: no model of this name is loaded.", name)
        if not self._rows:
            _log_absence(settings)
            return
        for line in self._table():
            log.info("%s", line, extra=DETAIL)
        if with_summary:
            for line in self._summary():
                log.log(logging.ERROR if self._failures else logging.INFO, "%s", line)

    def fatal(self) -> str:
        """The error of a server that does not go on without the models that failed."""
        lines = self._summary()
        separator, reasons = ". " if len(lines) == 1 else "\n", "\n".join(lines)
        return (
            f"creating server: Internal - failed to load all models: {reasons}{separator}--exit-on-error=false serves "
            "the others"
        )

    def _table(self) -> list[str]:
        """One line for each version; none if there are too many."""
        if len(self._rows) > LONGEST_TABLE:
            return []
        names = max(len(row.full_name) for row in self._rows)
        versions = max(len(row.version) for row in self._rows)
        return [
            f"{row.full_name:<{names}} | {row.version:<{versions}} | {_first_line(row.status)}" for row in self._rows
        ]

    def _summary(self) -> list[str]:
        """The count of ready models and every failure. Reasons follow a single one; of several, each has a line then."""
        versions = Counter(row.full_name for row in self._rows)
        ready = len(versions.keys() - {row.full_name for row in self._failures})
        models = "model is ready in" if len(versions) == 1 else "models are ready in"
        counted = f"{ready} of {len(versions)} {models} {self._took_s:.1f} s"
        subjects = [
            f"{row.full_name} version {row.version}" if versions[row.full_name] > 1 else row.full_name
            for row in self._failures
        ]
        if not subjects:
            return [counted]
        if self._is_told:
            return [f"{counted}; failed, as said above: {', '.join(map(one_line, subjects))}"]
        reasons = [_first_line(row.reason or row.state) for row in self._failures]
        if len(subjects) == 1:
            return [f"{counted}; failed: {one_line(subjects[0])} ({reasons[0]})"]
        lines = (f"  {one_line(subject)}: {reason}" for subject, reason in zip(subjects, reasons, strict=True))
        return [f"{counted}; failed:", *lines]


def _log_absence(settings: Settings) -> None:
    if settings.startup_models == ():
        log.info("No model is loaded at start. --load-model names models to load; others are loaded on request.")
    else:
        places = ", ".join(settings.place_names)
        log.warning("Found no model in %s. A model is a directory <model>/<version>/model.py there.", places)


def _first_line(text: str) -> str:
    first = one_line(text.strip().partition("\n")[0])
    return first if len(first) <= _REASON_LENGTH else f"{first[:_REASON_LENGTH]}..."
