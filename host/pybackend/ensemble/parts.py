"""Finds the versions of the models in an ensemble, or the reason why one is missing."""

from __future__ import annotations

from collections.abc import Sequence

from pybackend.errors import ErrorCode, InferenceError, ModelLoadError, NotServingError
from pybackend.model.door import ModelDoor
from pybackend.model.model import Model
from pybackend.modelconfig.ensemble import EnsembleStep


class EnsembleParts:
    """Finds the versions that run the steps.

    Args:
        name: the ensemble's full name.
        namespace: the ensemble's; its models come before those of others.
        steps: the ensemble's steps.
        door: finds models.

    Attributes:
        lack_unloaded: True if the last search failed because a model was deliberately unloaded.
        may_come_back: True if it failed because of a model that may serve again without being loaded.
    """

    def __init__(self, name: str, namespace: str, steps: Sequence[EnsembleStep], door: ModelDoor) -> None:
        self.lack_unloaded = False
        self.may_come_back = False
        self._name = name
        self._namespace = namespace
        self._steps = steps
        self._door = door

    @property
    def names(self) -> frozenset[str]:
        """The names of the models."""
        return frozenset(step.model_name for step in self._steps)

    def find(self) -> list[Model]:
        """The version that runs each step.

        Raises:
            ModelLoadError: INVALID_ARG, a step cannot run; the text names the missing model and the reason.
        """
        self.lack_unloaded = self.may_come_back = False
        models: list[Model] = []
        for step in self._steps:
            try:
                models.append(self._door.find(step.model_name, step.model_version, self._namespace))
            except InferenceError as error:
                self.may_come_back = isinstance(error, NotServingError) and error.code is ErrorCode.UNAVAILABLE
                raise self._absence(step) from None
        return models

    def _absence(self, step: EnsembleStep) -> ModelLoadError:
        """The reason why a step cannot run; if several models are unknown, it names all of them."""
        part = step.model_name
        absences = {name: self._door.absence(name, self._namespace) for name in self.names}
        unknown = sorted(name for name, absence in absences.items() if not absence.known)
        if unknown:
            text = f"ensemble {self._name} contains models that are not available or ambiguous: {', '.join(unknown)}"
            reasons = "; ".join(absences[name].reason for name in unknown if absences[name].reason)
            advice = f" ({reasons})" if reasons else ". Load a model of that name, or correct model_name in the step"
            return ModelLoadError(text + advice, ErrorCode.INVALID_ARG)
        if step.model_version and self._serves_some_version(part):
            text = f"ensemble '{self._name}' depends on '{part}' whose required version {step.model_version} is not loaded."
            advice = (
                " A step without model_version means version 0; -1 is the newest." if step.model_version == "0" else ""
            )
            return ModelLoadError(text + advice, ErrorCode.INVALID_ARG)
        text = f"ensemble '{self._name}' depends on '{part}' which has no loaded version."
        absence = absences[part]
        self.lack_unloaded = absence.on_purpose
        if absence.on_purpose:
            text += f" '{part}' was unloaded: load it again, or load '{self._name}', which loads its parts"
        else:
            text += f" Model '{part}' loading failed with error: {absence.reason}"
        return ModelLoadError(text, ErrorCode.INVALID_ARG)

    def _serves_some_version(self, name: str) -> bool:
        try:
            self._door.find(name, home=self._namespace)
        except InferenceError:
            return False
        return True
