"""``ModelHarness`` runs a model through its whole life in this process, ``EnsembleHarness`` an ensemble with its models."""

import json
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from pybackend_sdk.request import InferenceRequest
from pybackend_testing.configuration import (
    ConfigSource,
    Configuration,
    EnsembleStep,
    check_connections,
    is_ensemble,
    read_configuration,
    read_ensemble,
    signature_of,
)
from pybackend_testing.ensemble import Ensemble, EnsembleReplies, Part
from pybackend_testing.errors import HarnessError, LoadError
from pybackend_testing.executor import ModelExecutor
from pybackend_testing.fakes import FakeModel
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


_H = TypeVar("_H", bound="_Entered")


class _Entered(ABC):
    """A harness in a ``with`` statement, which opens and closes it."""

    @abstractmethod
    def open(self) -> object:
        """Be ready for requests."""

    @abstractmethod
    def close(self) -> None:
        """End. Raises HarnessError: something was wrong all along."""

    def __enter__(self: _H) -> _H:  # noqa: PYI019  3.8 has no Self
        self.open()
        return self

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


class ModelHarness(_Entered):
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
                options = {"strict": self.strict, "wait_s": self._wait_s, "backend_directory": self._backend_directory}
                table.open(self, self._models or {}, partial(_sibling, table, options))
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

    def call(self, request: InferenceRequest, dispensable: AbstractSet[str] = frozenset()) -> HarnessReplies:
        """Run a request of another model, or of an ensemble's step, whose ``dispensable`` outputs may be missing."""
        executor = self._opened()
        exchange = self._exchange(request_of(request, self.name))
        exchange.dispensable = dispensable
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


class EnsembleHarness(_Entered):
    """Runs an ensemble: its steps, its maps, and errors as a server gives them.

    The package pybackend must be installed.

    Use it as a context manager, or call :meth:`open` and :meth:`close`. Its models are the directories beside its own,
    unless ``models`` has others. Steps run one after the other, in the calling thread.

    Args:
        model_dir: the ensemble's directory, with ``config.pbtxt``.
        config: replaces config.pbtxt: a dict, JSON text, or the path of a .pbtxt or .json file.
        overrides: fields of the configuration to replace.
        models: its models by name, and others that these call: a function, a model's directory, or a harness.
        strict: treat outputs of models that do not match their configurations as errors; else they are warnings.
        wait_s: how long to wait where a server would wait for ever.
        backend_directory: directory of Python-based backends, for models of backends that do not come with pybackend.
        environment: as of :class:`ModelHarness`, for all its models.
    """

    def __init__(
        self,
        model_dir: PathLike,
        *,
        config: ConfigSource = None,
        overrides: Optional[Mapping[str, Any]] = None,
        models: Optional[Mapping[str, Target]] = None,
        strict: bool = True,
        wait_s: float = WAIT_S,
        backend_directory: Optional[PathLike] = None,
        environment: Optional[PathLike] = None,
    ) -> None:
        self.directory = model_directory(model_dir)
        self.name = os.path.basename(self.directory)
        self.strict = strict
        self.version = 1
        self._config_source = config
        self._overrides = dict(overrides or {})
        self._models = models
        self._options: Dict[str, Any] = {"strict": strict, "wait_s": wait_s, "environment": environment}
        self._options["backend_directory"] = backend_directory
        self._joined: Optional[ModelTable] = None
        self._table: Optional[ModelTable] = None
        self._configuration: Optional[Configuration] = None
        self._ensemble: Optional[Ensemble] = None

    # Life

    def open(self, config: ConfigSource = None) -> "EnsembleHarness":
        """Load its models, and check it against them.

        Raises:
            ConfigError: its configuration is missing or wrong, or does not fit its models.
            LoadError: a model is missing, or cannot be loaded.
        """
        if self.is_open:
            raise HarnessError(f"the harness of ensemble '{self.name}' is already open")
        source = self._config_source if config is None else config
        configuration, steps = read_ensemble(self.directory, self.name, source, self._overrides)
        self._table = table = self._joined or ModelTable()
        try:
            if self._joined is None:
                table.open(self, self._models or {}, partial(_sibling, table, self._options))
            parts = self._parts(table, steps)
            check_connections(configuration, [None if part.signature is None else part.model.config for part in parts])
        except BaseException:
            self._table = None
            if self._joined is None:
                with suppress(HarnessError):  # the test should report why opening failed
                    table.close()
            raise
        self._configuration = configuration
        self._ensemble = Ensemble(self.name, signature_of(configuration.document), parts)
        return self

    def _parts(self, table: ModelTable, steps: "Sequence[EnsembleStep]") -> List[Part]:
        """The models of the steps, loaded."""
        unknown = sorted({each.model_name for each in steps if not (table.has(each.model_name) or self._beside(each))})
        if unknown:
            raise LoadError(
                f"ensemble {self.name} contains models that are not available or ambiguous: {', '.join(unknown)}. Put them "
                f"beside {self.directory}, or pass EnsembleHarness(models={{...}})"
            )
        parts = []
        for step in steps:
            model = table.ensure(step.model_name, self._default(step), by=self.name)
            if step.model_version and not isinstance(model, FakeModel) and model.version != int(step.model_version):
                raise LoadError(
                    f"ensemble '{self.name}' depends on '{step.model_name}' whose required version {step.model_version} is "
                    f"not loaded. The harness has loaded version {model.version}"
                )
            signature = None if isinstance(model, FakeModel) else signature_of(model.config)
            inputs = {} if signature is None else signature.inputs
            optional = {name for name, spec in inputs.items() if spec.optional}
            parts.append(Part(step, model, signature, optional))
        return parts

    def _beside(self, step: EnsembleStep) -> str:
        """The directory of a step's model beside that of the ensemble, ``""`` if there is none."""
        directory = os.path.join(os.path.dirname(self.directory), step.model_name)
        return directory if os.path.isdir(directory) else ""

    def _default(self, step: EnsembleStep) -> Any:
        directory = self._beside(step)
        if step.model_version and directory and not is_ensemble(directory):
            return ModelHarness(directory, version=int(step.model_version), **self._options)
        return directory

    def close(self) -> None:
        """Finalize and remove its models. Does nothing if the harness is closed.

        Raises:
            FinalizeError: a ``finalize`` raised (if the harness is strict).
        """
        table, self._table = self._table, None
        self._ensemble = None
        if table is not None and self._joined is None:
            table.close()
            table.failures.raise_first()

    @property
    def is_open(self) -> bool:
        """Whether its models are loaded."""
        return self._ensemble is not None

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
        **named_inputs: Any,
    ) -> Result:
        """Send one request through the steps; the arguments are those of :meth:`ModelHarness.infer`.

        Raises:
            HarnessError: an ``InputError`` if the request does not fit the ensemble, an ``OutputError`` if the response
                of a model does not fit its configuration.
        """
        if self.decoupled:
            raise HarnessError(
                f"ensemble '{self.name}' has a decoupled part, so it is decoupled: use harness.stream(...), which returns its "
                "responses one by one"
            )
        given = {**(inputs or {}), **named_inputs}
        request = Request(given, outputs, request_id, correlation_id, parameters, timeout_us, priority, flags)
        return next(self._results(request))

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
        **named_inputs: Any,
    ) -> "Iterator[Result]":
        """Send one request and return an iterator over its responses.

        Its ``close()`` cancels the requests to the models.
        """
        given = {**(inputs or {}), **named_inputs}
        return self._results(
            Request(given, outputs, request_id, correlation_id, parameters, timeout_us, priority, flags)
        )

    def _results(self, request: Request) -> "Iterator[Result]":
        table, ensemble = self._opened_table(), self._opened()
        for response, exception in ensemble.responses(exchange_of(request, ensemble.signature)):
            table.failures.raise_first()
            yield Result(response, exception)
        table.failures.raise_first()

    def is_ready(self) -> Readiness:
        """Whether all its models are ready."""
        for part in self._opened().parts:
            if not isinstance(part.model, FakeModel):
                readiness: Readiness = part.model.is_ready()
                if not readiness:
                    return Readiness(False, f"its part '{part.model.name}' is not ready: {readiness.reason}")
        return Readiness(True, "")

    # State that a test may inspect

    @property
    def decoupled(self) -> bool:
        """Whether one of its models is, so that it sends any number of responses per request."""
        return self._opened().decoupled

    @property
    def config(self) -> Dict[str, Any]:
        """The configuration."""
        self._opened()
        assert self._configuration is not None
        document: Dict[str, Any] = json.loads(json.dumps(self._configuration.document))
        document["model_transaction_policy"] = {"decoupled": self.decoupled}
        return document

    @property
    def models(self) -> "Dict[str, ModelHarness]":
        """The models that run in harnesses: ``harness.models["part"].logs``."""
        running = self._opened_table().running()
        return {name: model for name, model in running.items() if isinstance(model, ModelHarness)}

    @property
    def metrics(self) -> MetricRegistry:
        """The custom metrics of its models."""
        return self._opened_table().metrics

    # Calls by models and by other ensembles

    def call(self, request: InferenceRequest, dispensable: AbstractSet[str] = frozenset()) -> "EnsembleReplies":
        """Run the request of a model, or of another ensemble's step.

        Outputs may be missing, ``dispensable`` ones or not.
        """
        del dispensable
        ensemble = self._opened()
        exchange = exchange_of(request_of(request, self.name), ensemble.signature)
        return EnsembleReplies(ensemble.responses(exchange), decoupled=ensemble.decoupled)

    # Inside

    def _opened(self) -> Ensemble:
        if self._ensemble is None:
            raise HarnessError(
                f"the harness of ensemble '{self.name}' is not open: use it as `with EnsembleHarness(...) as harness:`"
            )
        return self._ensemble

    def _opened_table(self) -> ModelTable:
        self._opened()
        assert self._table is not None
        return self._table


def _sibling(
    table: ModelTable, options: Mapping[str, Any], target: Any, name: str
) -> "Optional[Union[ModelHarness, EnsembleHarness]]":
    """Make a harness for a directory, or return the given one, among the models of a table; None for other targets."""
    harness: Union[ModelHarness, EnsembleHarness]
    if isinstance(target, (ModelHarness, EnsembleHarness)):
        if target.is_open or target._models is not None:
            return target
        harness = target
    elif not isinstance(target, (str, os.PathLike)):
        return None
    else:
        harness = EnsembleHarness(target, **options) if is_ensemble(target) else ModelHarness(target, **options)
    harness._joined, harness.name = table, name
    return harness
