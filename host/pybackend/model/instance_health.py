"""Whether the version that has these processes serves: they live, and the model's ``is_ready`` agrees."""

import asyncio
import logging

from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.settings import InstanceState
from pybackend.model.instance_requests import Availability
from pybackend.model.model import Health, Model, ModelState
from pybackend.model.processes import ModelProcesses

log = logging.getLogger(__name__)


class InstanceHealth(Health):
    """Remembers what the model's ``is_ready`` said last."""

    def __init__(self, model: Model, processes: ModelProcesses, availability: Availability) -> None:
        super().__init__(model)
        self._processes = processes
        self._availability = availability
        self._last = ""

    @property
    def is_ready(self) -> bool:
        return self._model.state is ModelState.READY and self._are_alive

    @property
    def _are_alive(self) -> bool:
        return all(instance.state is InstanceState.READY for instance in self._processes.instances)

    @property
    def has_is_ready(self) -> bool:
        return any(each.session is not None and each.session.has_is_ready for each in self._processes.instances)

    async def _objection(self) -> str:
        reasons = await asyncio.gather(*(instance.not_ready_reason() for instance in self._processes.instances))
        reason = next(filter(None, reasons), "")
        if self.is_ready:
            self._note(reason)
        return reason

    def _note(self, reason: str) -> None:
        """Note what ``is_ready`` says; the log has a line whenever that changes between yes and no."""
        about = self._model.full_name, self._model.version
        if reason and not self._last:
            log.warning("Model '%s' version %s is not ready: %s", *about, reason)
        elif self._last and not reason:
            log.info("Model '%s' version %s is ready again", *about)
        self._last = reason

    @property
    def own_objection(self) -> str:
        if self._model.state is not ModelState.READY:
            return ""
        failure = self._availability.failure
        return self._last if failure is None else failure.message

    @property
    def keeps_askers_waiting(self) -> bool:
        return (bool(self._last) and any(map(_is_asked, self._processes.instances))) or self._processes.is_debugged


def _is_asked(instance: ModelInstance) -> bool:
    """Whether its ``is_ready`` has not answered."""
    return instance.session is not None and instance.session.readiness.is_asked
