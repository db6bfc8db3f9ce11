"""The versions that run an ensemble's steps, from one change of its parts to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybackend.model.cached_answers import CachedAnswers
from pybackend.model.ensemble_plan import ONCE, EnsemblePlan
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.ensemble import EnsembleStep
from pybackend.modelconfig.signature import ModelSignature

_MOST_PLANS = 64
"""Sets of outputs whose plans are kept; clients may choose any."""


class EnsembleBinding:
    """The versions, and the plans that were made for them.

    While requests use it, these versions answer them to the end, although they may be unloaded meanwhile.

    Args:
        steps: of the ensemble.
        models: for each step, the version that runs it.
        signature: of the ensemble.
        answers: those that these versions gave before; None if requests are always executed.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        models: Sequence[Model],
        signature: ModelSignature,
        answers: CachedAnswers | None = None,
    ) -> None:
        self._steps = steps
        self._models = models
        self._outputs = tuple(signature.outputs)
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}
        self._users = 0
        self._let_go: list[Callable[[], None]] = []
        self.answers = answers
        self.models: Sequence[Model] = tuple(dict.fromkeys(models))

    @property
    def is_current(self) -> bool:
        """True if all versions take requests."""
        for model in self.models:  # noqa: SIM110  asked once per request
            if model.state is not ModelState.READY:
                return False
        return True

    def plan(self, requested_outputs: tuple[str, ...]) -> EnsemblePlan:
        """The way to these outputs, to all of them for ``()``."""
        plan = self._plans.get(requested_outputs)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            wanted = tuple(dict.fromkeys(requested_outputs)) or self._outputs
            plan = self._plans[requested_outputs] = EnsemblePlan(self._steps, self._models, wanted)
        return plan

    def only_taker(self, name: str) -> tuple[Model, str] | None:
        """The version and its input that is all that an ensemble's input is good for; None if there is more, or less."""
        plan = self.plan(())
        if plan.uses(name) != 1:
            return None
        return next(
            (
                (step.model, inner)
                for step in plan.takers(name)
                for inner, tensor in step.inputs
                if tensor == name and step.chain == ONCE
            ),
            None,
        )

    def enter(self) -> None:
        """A request begins."""
        self._users += 1
        if self._users == 1:
            self._let_go = [model.hold() for model in self.models]

    def leave(self) -> None:
        """A request has ended."""
        self._users -= 1
        if not self._users:
            let_go, self._let_go = self._let_go, []
            for each in let_go:
                each()
