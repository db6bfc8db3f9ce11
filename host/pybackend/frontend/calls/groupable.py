"""Finds models whose calls would cost less in one process, and tells the log once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pybackend.apart import apart
from pybackend.errors import InferenceError, PybackendError
from pybackend.model.model import Model
from pybackend.model.python_model import could_run
from pybackend.modelconfig.group_advice import OFTEN_PER_S, SAVED_NS, GroupAdvice

log = logging.getLogger(__name__)

LOOK_S = 1.0
ENOUGH = 1000
"""Calls before the log says anything: a burst is not yet a pipeline."""

Pair = tuple[str, str]
"""The full names of the model that calls and of the one that is called."""


class _Judgement(NamedTuple):
    caller: Model
    called: Model
    could_share: bool


class GroupableCalls:
    """Counts the calls that cross the server, and judges once a second whether they need to.

    ``find`` returns the version that stands for a model, and raises InferenceError if there is none.

    Attributes:
        made: the calls that could stay in a process that both models share, as far as the call itself tells.
    """

    def __init__(self, find: Callable[[str], Model]) -> None:
        self.made: Counter[Pair] = Counter()
        self._find = find
        self._before: Mapping[Pair, int] = {}
        self._judged: dict[Pair, _Judgement] = {}

    def counts(self) -> list[tuple[Pair, int]]:
        """The calls between models that could share a process, where calls take longer than the work that they ask for."""
        return [(pair, self.made[pair]) for pair, judgement in self._judged.items() if judgement.could_share]

    async def watch(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            before, self._before = self._before, dict(self.made)
            for pair, count in self._before.items():
                try:
                    await self._judge(pair, (count - before.get(pair, 0)) / LOOK_S)
                except Exception:  # the next look may succeed
                    log.exception("calls of '%s' to '%s' could not be judged", *pair)

    async def _judge(self, pair: Pair, calls_per_s: float) -> None:
        try:
            caller, called = map(self._find, pair)
        except InferenceError:  # one of them serves no more
            del self.made[pair]
            self._judged.pop(pair, None)
            return
        judgement = self._judged.get(pair)
        if judgement is not None and judgement[:2] == (caller, called):
            return
        self._judged.pop(pair, None)
        if self.made[pair] < ENOUGH or calls_per_s < OFTEN_PER_S or not _computes_little(called):
            return
        try:
            could_share = await apart(f"the files of '{pair[0]}' and '{pair[1]}'", could_run, caller, called)
        except PybackendError:
            return
        self._judged[pair] = _Judgement(caller, called, could_share)
        if could_share:
            log.info("%s", GroupAdvice(*pair, calls_per_s))


def _computes_little(called: Model) -> bool:
    """Whether passing a call on takes longer than an average execution."""
    statistics = called.statistics
    return statistics.compute_infer_ns < SAVED_NS * statistics.executed_count
