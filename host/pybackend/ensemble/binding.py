"""The versions that run an ensemble's steps until one of its parts changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybackend.ensemble.plan import ONCE, EnsemblePlan
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.ensemble import EnsembleStep
from pybackend.modelconfig.signature import ModelSignature

_MOST_PLANS = 64
"""Number of plans to keep; clients may request any set of outputs."""


class EnsembleBinding:
    """The bound versions, and the plans made for them.

    Requests that use a binding are answered by its versions to their end, even if these are unloaded meanwhile.

    Args:
        steps: the ensemble's steps.
        models: the version that runs each step.
        signature: the ensemble's signature.
    """

    def __init__(
        self,
        steps: Sequence[EnsembleStep],
        models: Sequence[Model],
        signature: ModelSignature,
    ) -> None:
        self._steps = steps
        self._models = models
        self._outputs = tuple(signature.outputs)
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}
        self._users = 0
        self._let_go: list[Callable[[], None]] = []
        self.models: Sequence[Model] = tuple(dict.fromkeys(models))

    @property
    def is_current(self) -> bool:
        """True if all versions accept requests."""
        for model in self.models:  # noqa: SIM110  asked once per request
            if model.state is not ModelState.READY:
                return False
        return True

    def plan(self, requested_outputs: tuple[str, ...]) -> EnsemblePlan:
        """The plan for these outputs, for all outputs if ``()``."""
        plan = self._plans.get(requested_outputs)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            wanted = tuple(dict.fromkeys(requested_outputs)) or self._outputs
            plan = self._plans[requested_outputs] = EnsemblePlan(self._steps, self._models, wanted)
        return plan

    def only_taker(self, name: str) -> tuple[Model, str] | None:
        """The version and its input that alone use an ensemble's input; None if none, or several, use it."""
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
        """A request starts."""
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
