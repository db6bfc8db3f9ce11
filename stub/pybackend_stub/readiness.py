"""``is_ready()``: a model's report about itself, which may run while ``execute`` is busy."""

import threading
from typing import Any, Callable

from pybackend_stub.executor import ModelExecutor


class ReadinessCheck:
    """Calls a model's ``is_ready``, each time in a new thread; the host probes again only after an answer.

    Args:
        is_ready: the model's method.
        executor: its event loop runs ``is_ready`` if that is a coroutine function.
        answer: receives the result, and the reason if it is not True.
        format_error: formats an exception as text.
        instance_name: for messages.
    """

    def __init__(
        self,
        is_ready: "Callable[[], Any]",
        executor: ModelExecutor,
        answer: "Callable[[bool, str], None]",
        format_error: "Callable[[BaseException], str]",
        instance_name: str,
    ) -> None:
        self._is_ready = is_ready
        self._executor = executor
        self._answer = answer
        self._format_error = format_error
        self._not_ready = f"Model '{instance_name}' is not ready (user-defined check failed)."

    def start(self) -> None:
        """Begin a check."""
        threading.Thread(target=self._check, name="pybackend-readiness", daemon=True).start()

    def _check(self) -> None:
        import inspect

        try:
            ready = self._is_ready()
            if inspect.iscoroutine(ready):
                ready = self._executor.runner.run(0, ready)
        except BaseException as error:  # noqa: BLE001  any exception means that the model is not ready
            self._answer(False, self._format_error(error))
            return
        if not isinstance(ready, bool):
            self._answer(False, f"is_ready() must return a boolean value, not {type(ready).__name__}")
        else:
            self._answer(ready, "" if ready else self._not_ready)
