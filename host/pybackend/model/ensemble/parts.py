"""Finds the versions of the models in an ensemble, and binds them to its steps until one of them changes."""

from collections.abc import Callable, Mapping, Sequence

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError, NotServingError
from pybackend.model.ensemble.plan import EnsemblePlan
from pybackend.model.ensemble.planned_step import ONCE
from pybackend.model.host import ModelRouter, NotLoaded
from pybackend.model.model import Model, ModelState
from pybackend.modelconfig.ensemble import EnsembleStep
from pybackend.modelconfig.signature import ModelSignature
from pybackend.recurring import Recurring


class PartError(ModelLoadError):
    """A step of an ensemble cannot run.

    Attributes:
        of_unloaded: its model was deliberately unloaded.
        may_come_back: its model may serve again without being loaded.
    """

    of_unloaded = False
    may_come_back = False


def find_parts(name: str, namespace: str, steps: Sequence[EnsembleStep], router: ModelRouter) -> list[Model]:
    """The version that runs each step; models of the ensemble's namespace come before those of others.

    Raises:
        PartError: INVALID_ARG, a step cannot run; the text names the missing model and the reason.
    """
    models: list[Model] = []
    for step in steps:
        try:
            models.append(router.find(step.model_name, step.model_version, namespace))
        except InferenceError as error:
            absences = {each.model_name: router.absence(each.model_name, namespace) for each in steps}
            fault = _fault(name, namespace, step, absences, router)
            fault.may_come_back = isinstance(error, NotServingError) and error.code is ErrorCode.UNAVAILABLE
            raise fault from None
    return models


def _fault(
    name: str, namespace: str, step: EnsembleStep, absences: Mapping[str, NotLoaded], router: ModelRouter
) -> PartError:
    """The reason why a step cannot run; if several models are unknown, it names all of them."""
    part = step.model_name
    unknown = sorted(each for each, absence in absences.items() if not absence.known)
    if unknown:
        text = f"ensemble {name} contains models that are not available or ambiguous: {', '.join(unknown)}"
        reasons = "; ".join(absences[each].reason for each in unknown if absences[each].reason)
        advice = f" ({reasons})" if reasons else ". Load a model of that name, or correct model_name in the step"
        return PartError(text + advice, ErrorCode.INVALID_ARG)
    if step.model_version and _serves_some_version(part, namespace, router):
        text = f"ensemble '{name}' depends on '{part}' whose required version {step.model_version} is not loaded."
        advice = " A step without model_version means version 0; -1 is the newest." * (step.model_version == "0")
        return PartError(text + advice, ErrorCode.INVALID_ARG)
    text = f"ensemble '{name}' depends on '{part}' which has no loaded version."
    if absences[part].on_purpose:
        text += f" '{part}' was unloaded: load it again, or load '{name}', which loads its parts"
    else:
        text += f" Model '{part}' loading failed with error: {absences[part].reason}"
    fault = PartError(text, ErrorCode.INVALID_ARG)
    fault.of_unloaded = absences[part].on_purpose
    return fault


def _serves_some_version(name: str, namespace: str, router: ModelRouter) -> bool:
    try:
        router.find(name, home=namespace)
    except InferenceError:
        return False
    return True


MOST_PLANS = 64
"""Number of plans to keep; clients may request any set of outputs."""


class EnsembleBinding:
    """The versions that run each step, and the plans made for them.

    Requests that use a binding are answered by its versions to their end, even if these are unloaded meanwhile.
    """

    def __init__(self, steps: Sequence[EnsembleStep], models: Sequence[Model], signature: ModelSignature) -> None:
        self._steps = steps
        self._models = models
        self._outputs = tuple(signature.outputs)
        self._plans: Recurring[tuple[str, ...], EnsemblePlan] = Recurring(MOST_PLANS)
        self._users = 0
        self._releases: list[Callable[[], None]] = []
        self.models: Sequence[Model] = tuple(dict.fromkeys(models))

    @property
    def is_current(self) -> bool:
        """True if all versions accept requests."""
        for model in self.models:  # noqa: SIM110  asked once per request
            if model.state is not ModelState.READY:
                return False
        return True

    def plan(self, requested_outputs: tuple[str, ...]) -> EnsemblePlan:
        plan = self._plans.get(requested_outputs)
        if plan is None:
            wanted = tuple(dict.fromkeys(requested_outputs)) or self._outputs
            plan = EnsemblePlan(self._steps, self._models, wanted)
            self._plans.remember(requested_outputs, plan)
        return plan

    def only_consumer(self, name: str) -> tuple[Model, str] | None:
        """The version and its input that alone use an ensemble's input; None if none, or several, use it."""
        plan = self.plan(())
        if plan.uses(name) != 1:
            return None
        for step in plan.consumers(name):
            for inner, tensor in step.inputs:
                if tensor == name and step.chain == ONCE:
                    return step.model, inner
        return None

    def enter(self) -> None:
        self._users += 1
        if self._users == 1:
            self._releases = [model.hold() for model in self.models]

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            releases, self._releases = self._releases, []
            for release in releases:
                release()
