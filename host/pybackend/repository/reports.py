"""The log's lines when the models are loaded, and while a server stops: which models it waits for, and how not to wait."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pybackend.observability.log_lines import one_line
from pybackend.observability.logging import DETAIL
from pybackend.repository.entry import ModelStatus
from pybackend.settings import Settings
from pybackend.spelling import cut_between_words

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""How often a change is noticed."""

REPEAT_S = 5.0
"""After this long without a change, the log repeats the line."""

_MOST_NAMED = 10


@dataclass(frozen=True)
class Unfinished:
    """A version that a stopping server waits for."""

    name: str
    version: str  # decimal
    request_count: int  # its unanswered requests; 0 while it is finalized

    def __str__(self) -> str:
        subject = f"'{self.name}' version {self.version}"
        if not self.request_count:
            return f"{subject} (being finalized)"
        return f"{subject} ({self.request_count} request{'s' if self.request_count > 1 else ''})"


class StopReport:
    """Logs the models that a stopping server waits for: at once, when that changes, and every few seconds.

    Args:
        unfinished: returns the versions that are not released yet.
        connection_count: returns the number of connections in the middle of a request or response.
        deadline_s: when the server stops waiting, by the loop's clock.
        takes_signals: whether a second signal ends the wait; else that is its caller's business.
    """

    def __init__(
        self,
        unfinished: Callable[[], Sequence[Unfinished]],
        connection_count: Callable[[], int],
        deadline_s: float,
        *,
        takes_signals: bool = True,
    ) -> None:
        self._unfinished = unfinished
        self._connection_count = connection_count
        self._deadline_s = deadline_s
        self._way_out = "; a second Ctrl-C or SIGTERM ends it at once" if takes_signals else ""
        self._said = ""
        self._said_s = 0.0

    async def run(self) -> None:
        """Write to the log until cancelled."""
        loop = asyncio.get_running_loop()
        level = logging.INFO
        while True:
            line = self.line(loop.time())
            if line:
                log.log(level, "%s", line)
            level = logging.WARNING  # a request that is answered soon is no reason to warn
            await asyncio.sleep(PERIOD_S)

    def line(self, now_s: float) -> str:
        """The line for the log now, ``""`` if there is nothing new."""
        waits = self._waits()
        left_s = round(self._deadline_s - now_s)
        if not waits or left_s <= 0 or (waits == self._said and now_s < self._said_s + REPEAT_S):
            return ""
        self._said, self._said_s = waits, now_s
        wait = f"The server waits at most {left_s} s for this, its exit timeout{self._way_out}."
        return f"Timeout {left_s}: Found {waits}. {wait}"

    def _waits(self) -> str:
        unfinished = self._unfinished()
        running = [each for each in unfinished if each.request_count]
        ending = [each for each in unfinished if not each.request_count]
        waits = []
        if running:
            waits.append(f"{len(running)} model versions that have in-flight inferences: {_named(running)}")
        if ending:
            waits.append(f"{len(ending)} live models: {_named(ending)}")
        if not waits and (count := self._connection_count()):
            waits.append(f"{count} HTTP service connections that still send a request or read a response")
        return "; ".join(waits)


def _named(unfinished: Sequence[Unfinished]) -> str:
    more = len(unfinished) - _MOST_NAMED
    return ", ".join(map(str, unfinished[:_MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


LONGEST_TABLE = 20
"""Rows of the longest table: beyond a screenful, an operator wants the failures and the count of the others."""

_REASON_LENGTH = 1000


class StartReport:
    """The outcome of the start.

    Args:
        is_told: the report follows the lines about failed loads. Then its summary repeats no reasons, unless they are
            more than a screenful away.
    """

    def __init__(self, rows: Sequence[ModelStatus], took_s: float, *, is_told: bool = True) -> None:
        self._rows = rows
        self._is_told = is_told and len(rows) <= LONGEST_TABLE
        self._took_s = took_s
        self._failures = [row for row in rows if not row.is_ready]

    def log(self, settings: Settings, *, with_summary: bool) -> None:
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
            "the others; the manual's page 'Troubleshooting' has such reasons by their first words"
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
        """The count of ready models and every failure.

        Reasons follow a single one; of several, each has a line then.
        """
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
    if settings.caller is not None:
        log.info("No function is bound at start.")
    elif settings.models.startup_models == ():
        log.info("No model is loaded at start. --load-model names models to load; others are loaded on request.")
    else:
        places = ", ".join(settings.place_names)
        log.warning("Found no model in %s. A model is a directory <model>/<version>/model.py there.", places)


def _first_line(text: str) -> str:
    return cut_between_words(one_line(text.strip().partition("\n")[0]), _REASON_LENGTH)
