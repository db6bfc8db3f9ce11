"""One life of one model: import, complete, initialise, finalize. It is the harness's counterpart of a stub process."""

import inspect
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Tuple

from pybackend_sdk.logger import Logger
from pybackend_sdk.model_class import check_execute
from pybackend_sdk.model_loader import complete_config
from pybackend_sdk.testing.attribution import attach, detach, entered
from pybackend_sdk.testing.errors import FinalizeError, LoadError
from pybackend_sdk.testing.executor import ExecutionOptions, ModelExecutor
from pybackend_sdk.testing.failures import PendingFailures, contained, format_error
from pybackend_sdk.testing.runtime import HarnessRuntime
from pybackend_sdk.testing.signature import Signature


class ModelInstance:
    """A model object that runs as if in a separate process.

    Args:
        runtime: serves the model's ``pb_utils`` calls.
        model_file: path of the file, for messages.
        wait_s: how long to wait for the model where a server would wait for ever.
        failures: collects exceptions that must reach the test.
    """

    def __init__(self, runtime: HarnessRuntime, model_file: str, wait_s: float, failures: PendingFailures) -> None:
        self.runtime = runtime
        self.model: Any = None
        self._model_file = model_file
        self._wait_s = wait_s
        self._failures = failures
        self._model_class: Optional[type] = None
        self._executor: Optional[ModelExecutor] = None
        self._has_is_ready = False

    @property
    def executor(self) -> ModelExecutor:
        """Runs requests on the model."""
        assert self._executor is not None
        return self._executor

    def load(self) -> None:
        """Import the model.

        Raises:
            LoadError: with the reason as a server shows it.
        """
        attach(self.runtime)
        with self._loading():
            self._model_class = self.runtime.modules.load()

    def complete_config(self, model_name: str, config_json: str) -> "Optional[Dict[str, Any]]":
        """Run ``auto_complete_config`` on the configuration; None if the model has no such function.

        Raises:
            LoadError: with the reason as a server shows it.
        """
        assert self._model_class is not None
        with self._loading():
            return complete_config(self._model_class, model_name, config_json)

    def initialize(self, args: Dict[str, str], signature: Signature, options: ExecutionOptions) -> None:
        """Make the model object and initialise it.

        Args:
            args: the argument of the model's ``initialize``.
            signature: its inputs and outputs.
            options: how it answers.

        Raises:
            LoadError: with the reason as a server shows it.
        """
        assert self._model_class is not None
        self.runtime.begin_initialize()
        with self._loading():
            self.model = self._model_class()
            initialize = getattr(self.model, "initialize", None)
            if initialize is not None:
                initialize(args)
            check_execute(self.model, self._model_file)
        self._has_is_ready = getattr(self.model, "is_ready", None) is not None
        self._executor = ModelExecutor(self.runtime, self.model, signature, options, self._wait_s, self._failures)
        self.runtime.begin_serving(self._executor.new_stream)

    def finalize(self, *, strict: bool) -> None:
        """Wait for running executions, call ``finalize`` and end the model's event loop.

        Args:
            strict: raise an error if ``finalize`` does; a server only logs that.

        Raises:
            FinalizeError: ``finalize`` raised, or ``execute`` does not return.
        """
        problem = self.executor.drain()
        self.runtime.begin_finalize()
        cause: Optional[BaseException] = None
        finalize = getattr(self.model, "finalize", None)
        if problem is None and finalize is not None:
            try:
                with entered(self.runtime):
                    finalize()
            except BaseException as error:
                if not contained(error):
                    raise
                self.runtime.say(Logger.INFO, f"Failed to finalize model: {format_error(error)}")
                if strict:
                    problem, cause = f"finalize raised: {format_error(error)}", error
        self.executor.close()
        if problem is not None:
            raise FinalizeError(problem) from cause

    def release(self) -> None:
        """Remove everything of the model from this process."""
        self.runtime.end()
        self.runtime.modules.close()
        detach(self.runtime)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            with entered(self.runtime):
                yield
        except BaseException as error:
            if not contained(error):
                raise
            raise LoadError(format_error(error)) from error

    def is_ready(self) -> Tuple[bool, str]:
        """Call the model's ``is_ready``; returns the result and the reason if it is False. True without one."""
        if not self._has_is_ready:
            return True, ""
        try:
            with entered(self.runtime):
                ready = self.model.is_ready()
                if inspect.iscoroutine(ready):
                    ready = self.executor.runner.run(ready)
        except BaseException as error:
            if not contained(error):
                raise
            return False, format_error(error)
        if not isinstance(ready, bool):
            return False, f"is_ready() must return a boolean value, not {type(ready).__name__}"
        return ready, "" if ready else f"Model '{self.runtime.instance_name}' is not ready (user-defined check failed)."
