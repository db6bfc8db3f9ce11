"""``ModelHarness``: runs a model through its whole life in this process, without a server."""

import json
import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type, Union

from pybackend_sdk.request import InferenceRequest
from pybackend_testing.configuration import ConfigSource, Configuration, read_configuration
from pybackend_testing.errors import HarnessError
from pybackend_testing.executor import ModelExecutor
from pybackend_testing.loading import (
    ModelPlan,
    PathLike,
    model_directory,
    model_file,
    open_model,
    version_directory,
)
from pybackend_testing.logs import LogLine, ModelLog
from pybackend_testing.metrics import MetricRegistry
from pybackend_testing.model_table import ModelTable, Target
from pybackend_testing.remote import environment_of
from pybackend_testing.request import Exchange, Request, exchange_of, request_of
from pybackend_testing.result import HarnessReplies, Result, Stream, checked_result

WAIT_S = 30.0


class Readiness:
    """The result of a model's ``is_ready``: true or false, with :attr:`reason` if false."""

    def __init__(self, ready: bool, reason: str) -> None:
        self.ready = ready
        self.reason = reason

    def __bool__(self) -> bool:
        return self.ready

    def __repr__(self) -> str:
        return "Readiness(ready)" if self.ready else f"Readiness(not ready: {self.reason})"


class ModelHarness:
    """Runs a ``model.py`` through its life: import, ``auto_complete_config``, ``initialize``, ``execute``, ``finalize``.

    Use it as a context manager, or call :meth:`open` and :meth:`close`. The rules are those of a server, and failures
    have the same texts. ``execute`` runs in the calling thread, so that debuggers and the time limits of tests work;
    only :meth:`stream` uses another thread.

    Args:
        model_dir: the model's directory, with ``config.pbtxt`` and version directories.
        version: None for the highest.
        config: replaces config.pbtxt: a dict, JSON text, or the path of a .pbtxt or .json file.
        overrides: fields of the configuration to replace, e.g. ``{"max_batch_size": 8}``.
        parameters: values of the configuration's ``parameters`` to set, all strings.
        auto_complete: whether the model may complete its configuration.
        instance_kind: ``CPU``, ``GPU`` or ``MODEL``; None for the configured one.
        device_id: the device id passed to the model. A server passes 0: a process sees its own GPU alone.
        models: other models that this one may call, by name: a function, a model's directory, or another harness. See
            :mod:`pybackend_testing.fakes` for the arguments and results of functions.
        strict: treat outputs that do not match the configuration, and an exception from ``finalize``, as errors. If
            False, a mismatch is a warning and such an exception a log line, as in a server.
        wait_s: how long to wait where a server would wait for ever.
        backend_directory: directory of Python-based backends, for models of backends that do not come with pybackend.
        environment: an archive or directory with the Python that runs the model, in another process; ``"here"`` runs it
            in the test's own process. None for the configured one (``EXECUTION_ENV_PATH``).
        debug_port: port of this machine where a debugger must attach before a model in an environment is imported; that
            environment needs debugpy. A model in the test's own process stops where the test's debugger wants it to.
    """

    def __init__(
        self,
        model_dir: PathLike,
        *,
        version: Optional[int] = None,
        config: ConfigSource = None,
        overrides: Optional[Mapping[str, Any]] = None,
        parameters: Optional[Mapping[str, str]] = None,
        auto_complete: bool = True,
        instance_kind: Optional[str] = None,
        device_id: int = 0,
        models: Optional[Mapping[str, Target]] = None,
        strict: bool = True,
        wait_s: float = WAIT_S,
        backend_directory: Optional[PathLike] = None,
        environment: Optional[PathLike] = None,
        debug_port: Optional[int] = None,
    ) -> None:
        self.directory = model_directory(model_dir)
        self.name = os.path.basename(self.directory)
        self.strict = strict
        self._wanted_version = version
        self._config_source = config
        self._overrides = dict(overrides or {})
        self._parameters = dict(parameters or {})
        self._auto_complete = auto_complete
        self._instance_kind = instance_kind
        self._device_id = device_id
        self._models = models
        self._wait_s = wait_s
        self._backend_directory = backend_directory
        self._debug_port = debug_port
        self._environment = None if environment is None else os.fspath(environment)
        self._table: Optional[ModelTable] = None
        self._joined: Optional[ModelTable] = None
        self._executor: Optional[ModelExecutor] = None
        self._configuration: Optional[Configuration] = None
        self._version = 0
        self._log = ModelLog(self.name)

    # Life

    def open(self, config: ConfigSource = None) -> "ModelHarness":
        """Load and initialise the model, after the other models.

        Args:
            config: replaces the configuration that the harness was made with.

        Raises:
            LoadError: the model cannot be loaded; the text is the reason as a server shows it.
            ConfigError: its configuration is missing or wrong.
        """
        if self._executor is not None:
            raise HarnessError(f"the harness of model '{self.name}' is already open")
        configuration = read_configuration(
            self.directory, self._config_source if config is None else config, self._overrides, self._parameters
        )
        self.name = configuration.document["name"] if self._joined is None else self.name
        configuration.document["name"] = self.name
        self._log = ModelLog(self.name)
        plan = self._plan(configuration)
        self._table = table = self._joined or ModelTable()
        try:
            if self._joined is None:
                table.open(self, self._models or {}, self._sibling)
            self._executor, self._configuration = open_model(plan, table, self._log)
        except BaseException:
            self._table = None
            if self._joined is None:
                with suppress(HarnessError):  # the test should report why opening failed
                    table.close()
            raise
        return self

    def _plan(self, configuration: Configuration) -> ModelPlan:
        self._version, directory = version_directory(self.directory, self._wanted_version)
        path, of_backend = model_file(directory, configuration.document, self._backend_directory)
        return ModelPlan(
            self.name,
            self.directory,
            self._version,
            directory,
            path,
            of_backend,
            configuration,
            self._auto_complete,
            self._instance_kind,
            self._device_id,
            self._wait_s,
            environment_of(configuration.document, self.directory, self._environment),
            self._debug_port,
        )

    def close(self) -> None:
        """Finalize and remove the model, then the other models. Does nothing if the harness is closed.

        Raises:
            FinalizeError: ``finalize`` raised, or ``execute`` does not return (if the harness is strict).
        """
        executor, table = self._executor, self._table
        if executor is None or table is None:
            return
        self._executor = self._table = None
        try:
            executor.finalize(strict=self.strict)
        finally:
            executor.release()
            if self._joined is None:
                table.close()
        table.failures.raise_first()

    def __enter__(self) -> "ModelHarness":  # noqa: PYI034  3.8 has no Self
        return self.open()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            self.close()
        except HarnessError:
            if error is None:  # otherwise the test should report the first error
                raise

    @property
    def is_open(self) -> bool:
        """Whether the model is loaded."""
        return self._executor is not None

    # Inference

    def infer(
        self,
        inputs: Optional[Mapping[str, Any]] = None,
        /,
        *,
        outputs: Optional[Sequence[str]] = None,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        parameters: Optional[Mapping[str, Any]] = None,
        timeout_us: int = 0,
        priority: int = 0,
        flags: int = 0,
        wait_s: Optional[float] = None,
        **named_inputs: Any,
    ) -> Result:
        """Send one request and wait for its response: ``harness.infer(INPUT0=array, INPUT1=array)["OUTPUT0"]``.

        Args:
            inputs: by name, for names that are not keywords; see :class:`Request` for accepted values.
            outputs: see :class:`Request`, as for every argument up to ``flags``.
            wait_s: how long to wait for a response sender to answer before raising :class:`NoResponse`.
            named_inputs: more inputs.

        Raises:
            HarnessError: an ``InputError`` or ``OutputError`` if the request or response does not fit the model.
        """
        given = {**(inputs or {}), **named_inputs}
        request = Request(given, outputs, request_id, correlation_id, parameters, timeout_us, priority, flags)
        return self.execute([request], wait_s=wait_s)[0]

    def execute(
        self, requests: "Sequence[Union[Request, Mapping[str, Any]]]", *, wait_s: Optional[float] = None
    ) -> List[Result]:
        """Call ``execute`` once with several requests, as a dynamic batcher does, and wait for their responses.

        Args:
            requests: each one a :class:`Request` or just its inputs.
            wait_s: how long to wait for each response sender to answer.

        Raises:
            HarnessError: see :meth:`infer`.
        """
        executor = self._opened()
        if executor.decoupled:
            raise HarnessError(
                f"model '{self.name}' is decoupled and sends any number of responses: use harness.stream(...), which "
                "returns them one by one"
            )
        exchanges = [self._exchange(request) for request in requests]
        if not exchanges:
            raise HarnessError("execute is never called without requests: pass at least one")
        executor.execute(exchanges)
        wait_s = self._wait_s if wait_s is None else wait_s
        results = []
        for exchange in exchanges:
            arrival = executor.next_arrival(exchange, wait_s, 0)
            results.append(checked_result(executor, exchange, arrival, strict=self.strict))
        return results

    def stream(
        self,
        inputs: Optional[Mapping[str, Any]] = None,
        /,
        *,
        outputs: Optional[Sequence[str]] = None,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        parameters: Optional[Mapping[str, Any]] = None,
        timeout_us: int = 0,
        priority: int = 0,
        flags: int = 0,
        wait_s: Optional[float] = None,
        **named_inputs: Any,
    ) -> Stream:
        """Send one request and return its responses as they arrive; ``execute`` runs in another thread, call by call.

        The arguments are those of :meth:`infer`; ``wait_s`` is how long to wait for each response.
        """
        given = {**(inputs or {}), **named_inputs}
        request = Request(given, outputs, request_id, correlation_id, parameters, timeout_us, priority, flags)
        executor, exchange = self._opened(), self._exchange(request)
        executor.start(exchange)
        return Stream(executor, exchange, self._wait_s if wait_s is None else wait_s, strict=self.strict)

    def is_ready(self) -> Readiness:
        """Call the model's ``is_ready``; a model without one is ready."""
        return Readiness(*self._opened().is_ready())

    # State that a test may inspect

    @property
    def model(self) -> Any:
        """The model object, an instance of the model's ``TritonPythonModel``."""
        return self._opened().host.process.model

    @property
    def config(self) -> Dict[str, Any]:
        """The effective configuration, equal to ``json.loads(args["model_config"])``."""
        self._opened()
        assert self._configuration is not None
        document: Dict[str, Any] = json.loads(json.dumps(self._configuration.document))
        return document

    @property
    def version(self) -> int:
        """The open version, or the one open last."""
        return self._version

    @property
    def instance_name(self) -> str:
        """The instance's name, e.g. ``add_sub_0``."""
        return self._opened().instance_name

    @property
    def decoupled(self) -> bool:
        """Whether the model sends any number of responses per request."""
        return self._opened().decoupled

    @property
    def logs(self) -> List[LogLine]:
        """The lines that the model wrote through ``pb_utils.Logger`` since it was opened; they survive its end."""
        return self._log.lines

    @property
    def metrics(self) -> MetricRegistry:
        """The custom metrics of this model and of the models it calls."""
        return self._opened_table().metrics

    @property
    def models(self) -> "Dict[str, ModelHarness]":
        """The models that run in harnesses, including this one: ``harness.models["other"].logs``."""
        running = self._opened_table().running()
        return {name: model for name, model in running.items() if isinstance(model, ModelHarness)}

    # Calls by other models

    def call(self, request: InferenceRequest) -> HarnessReplies:
        """Run a model's request."""
        executor = self._opened()
        exchange = self._exchange(request_of(request, self.name))
        exchange.serve(executor.served())
        if executor.waits_for_caller:
            raise executor.cycle_refusal()
        if executor.decoupled:
            executor.start(exchange)
        else:
            executor.execute([exchange])
        return HarnessReplies(executor, exchange, self._wait_s, strict=self.strict)

    # Inside

    def _opened(self) -> ModelExecutor:
        if self._executor is None:
            raise HarnessError(
                f"the harness of model '{self.name}' is not open: use it as `with ModelHarness(...) as harness:`"
            )
        return self._executor

    def _opened_table(self) -> ModelTable:
        self._opened()
        assert self._table is not None
        return self._table

    def _exchange(self, request: Union[Request, Mapping[str, Any]]) -> Exchange:
        if not isinstance(request, Request):
            request = Request(request)
        return exchange_of(request, self._opened().signature)

    def _sibling(self, target: Any, name: str) -> "Optional[ModelHarness]":
        """Make a harness for a directory, or return the given one; it knows the same models as this one."""
        if isinstance(target, ModelHarness):
            if not target.is_open and target._models is None:
                target._joined, target.name = self._table, name
            return target
        if not isinstance(target, (str, os.PathLike)):
            return None
        harness = ModelHarness(
            target, strict=self.strict, wait_s=self._wait_s, backend_directory=self._backend_directory
        )
        harness._joined, harness.name = self._table, name
        return harness
