"""The findings of a search for the best form, and the choice that follows from them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pybackend_tools.analyzer.goal import Goal, Measured, Turns, gain, is_better, ranked
from pybackend_tools.analyzer.page import write_whole
from pybackend_tools.optimizer.accuracy import Difference, Tolerance
from pybackend_tools.optimizer.forms import Form

NAME = "results.json"
_FORMAT = 1


@dataclass(frozen=True)
class TriedForm(Measured):
    """A form that was tried, and measured at most once."""

    form: Form
    failed: str = ""  # why it has no figures
    difference: Difference | None = None
    metric: float | None = None  # None without a function for it
    start_s: float = 0.0  # from the load to readiness
    file_bytes: int = 0
    tensors: str = ""  # its inputs and outputs


@dataclass(frozen=True)
class Demands:
    """The limits for the answers of a form."""

    exact: Tolerance
    low_precision: Tolerance  # of forms in int8 and bf16
    metric_loss: float  # by how much the metric may be lower than the original's

    def broken_by(self, outcome: TriedForm, original: TriedForm) -> str:
        """A clause about what a form does not keep, ``""`` if it keeps all.

        With a metric, it alone decides about forms in a lower precision.
        """
        assert outcome.difference is not None
        if outcome.metric is not None and original.metric is not None:
            if outcome.metric < original.metric - self.metric_loss:
                return f"its metric is {outcome.metric:.4g}, and the original's is {original.metric:.4g}"
            if not outcome.form.is_exact:
                return ""
        return outcome.difference.beyond(self.exact if outcome.form.is_exact else self.low_precision)


@dataclass
class SearchResults:
    """All that a search has found; the file is complete after each form."""

    source: str  # the path that the user gave
    kind: str
    goal: Goal
    demands: Demands
    load: str  # a clause about the load
    requests: int = 0  # that were compared
    left_out: dict[str, str] = field(default_factory=dict)  # titles of forms that were not tried, and why
    outcomes: list[TriedForm] = field(default_factory=list)  # the first is that of the original in its usual form
    compared: Turns = ()  # of the original and the best one
    entry: str = ""  # the directory of the entry that was written

    @property
    def original(self) -> TriedForm:
        """The original in its usual form."""
        return self.outcomes[0]

    def ranked(self) -> list[TriedForm]:
        """The forms that keep everything, the best first."""
        kept = [each for each in self.outcomes if each.rungs and not self.demands.broken_by(each, self.original)]
        return ranked(kept, self.goal)

    @property
    def chosen(self) -> TriedForm | None:
        """The best form if it is reliably better than the original's, else that; None if no form keeps everything."""
        best = next(iter(self.ranked()), None)
        if best is None or best is self.original or self.reason(self.original):
            return best
        return best if self.compared and is_better(self.compared) else self.original

    @property
    def gain(self) -> float:
        """How many times better the best form is than the original's; 0 if they were not compared."""
        return gain(self.compared) if self.compared else 0.0

    def reason(self, outcome: TriedForm) -> str:
        """Why a form cannot be chosen, ``""`` if it can."""
        if outcome.failed:
            return outcome.failed
        return self.demands.broken_by(outcome, self.original) or (
            "" if self.goal.best(outcome.rungs) else "misses the limits"
        )

    def verdict(self) -> str:
        """The finding in a sentence or two."""
        if not self.outcomes:
            return "No form was measured."
        chosen, best = self.chosen, next(iter(self.ranked()), None)
        if chosen is None:
            return "No form keeps the tolerances and the limits."
        if chosen is not self.original:
            said = f"The best form is {chosen.form.title}: {chosen.rungs[0]}"
            return f"{said}, {self.gain:.2f} times as good as the original's." if self.compared else f"{said}."
        if best is not chosen and self.compared:
            noise = ", which is within the noise of this machine" if self.gain > 1 else ""
            return (
                f"No form is reliably better than {chosen.form.title}: measured in turns with it, the best other one was "
                f"{self.gain:.2f} times as good{noise}."
            )
        return f"No form is better than {chosen.form.title}: {chosen.rungs[0]}."

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": _FORMAT,
            "source": self.source,
            "kind": self.kind,
            "goal": asdict(self.goal),
            "demands": asdict(self.demands),
            "load": self.load,
            "requests": self.requests,
            "left_out": self.left_out,
            "outcomes": [{**asdict(each), "reason": self.reason(each)} for each in self.outcomes],
            "compared": self.compared,
            "chosen": self.chosen.form.name if self.outcomes and self.chosen else "",
            "entry": self.entry,
        }

    def write(self, directory: Path) -> None:
        """Write the file. Raises ServerError if it cannot be written."""
        write_whole(directory / NAME, json.dumps(_finite(self.document()), indent=1))


def _finite(value: Any) -> Any:
    """The same for JSON, which knows no infinite numbers: None in their place."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
