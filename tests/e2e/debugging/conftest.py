"""Servers whose models are debugged, and requests that wait while a debugger has stopped one."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.inference import Answer, infer
from tests.support.server import ServerProcess


class WaitingRequest:
    """An inference request in a thread of its own."""

    def __init__(self, server: ServerProcess, model: str, *values: float) -> None:
        self._answer: Answer | Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(server, model, np.array(values, np.float32)))
        self._thread.start()

    def _run(self, server: ServerProcess, model: str, array: np.ndarray) -> None:
        try:
            self._answer = infer(server, model, {"IN": array})
        except Exception as error:
            self._answer = error

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Answer:
        """The answer; fails if there is none."""
        self._thread.join(60)
        assert isinstance(self._answer, Answer), self._answer
        return self._answer


@pytest.fixture
def send() -> Iterator[Callable[..., WaitingRequest]]:
    """``send(server, model, *values)`` sends a request; whatever happens, no thread is left."""
    sent: list[WaitingRequest] = []

    def send(server: ServerProcess, model: str, *values: float) -> WaitingRequest:
        sent.append(WaitingRequest(server, model, *values))
        return sent[-1]

    yield send
    for request in sent:
        request._thread.join(60)
