"""A model instance that lives in a process of its environment, as the test sees it.

The test's process keeps configuration, requests, checks and other models. The environment's process imports the model
and calls it: see :mod:`pybackend_sdk.testing.environment_process`.
"""

import contextvars
import itertools
import os
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonError
from pybackend_sdk.logger import Logger
from pybackend_sdk.testing.attribution import attach
from pybackend_sdk.testing.crossing import (
    Plain,
    arrival_from_plain,
    call_from_plain,
    error_from_plain,
    plain_response,
    plain_tensor,
)
from pybackend_sdk.testing.environment import EnvironmentProcess
from pybackend_sdk.testing.errors import FinalizeError, HarnessError, LoadError, NoResponse
from pybackend_sdk.testing.exchange import Exchange
from pybackend_sdk.testing.executor import ExecutionOptions, ModelExecutor
from pybackend_sdk.testing.failures import PendingFailures
from pybackend_sdk.testing.fakes import Replies
from pybackend_sdk.testing.instance import ModelInstance
from pybackend_sdk.testing.logs import ModelLog
from pybackend_sdk.testing.model_table import ModelTable
from pybackend_sdk.testing.peer import NoReply, Peer, PeerGone, in_a_thread
from pybackend_sdk.testing.runtime import HarnessRuntime
from pybackend_sdk.testing.signature import Signature


class RemoteInstance(ModelInstance):
    """An instance in another process.

    Args:
        runtime: in this process; serves ``pb_utils`` calls of functions that stand in for other models.
        environment: path of the archive or directory.
        directory: the model's directory.
        parameters: of its configuration.
        of_backend: whether the model's file belongs to a Python-based backend.
        model_file: the file with the model's class.
        model_name: the model's name.
        wait_s: how long to wait where a server would wait for ever.
        table: the models that it may call.
        log: receives its lines.
    """

    def __init__(
        self,
        runtime: HarnessRuntime,
        environment: str,
        directory: str,
        parameters: "Mapping[str, Mapping[str, str]]",
        of_backend: bool,
        model_file: str,
        model_name: str,
        wait_s: float,
        table: ModelTable,
        log: ModelLog,
    ) -> None:
        super().__init__(runtime, model_file, wait_s, table.failures)
        self.model = _NotHere(f"the model object of '{model_name}' is in another process, of {environment}")
        self._environment = environment
        self._directory = directory
        self._parameters = parameters
        self._of_backend = of_backend
        self._model_name = model_name
        self._table = table
        self._log = log
        self._process: Optional[EnvironmentProcess] = None
        self._peer: Optional[Peer] = None
        self._started = threading.Event()
        self._here = False
        self._remote_executor: Optional[RemoteExecutor] = None
        self._replies: Dict[int, Replies] = {}
        self._numbers = itertools.count(1)
        self._samples: Dict[str, float] = {}

    def load(self) -> None:
        attach(self.runtime)
        places = [self.runtime.model_directory, os.path.dirname(self._model_file)]
        self._process = EnvironmentProcess(
            self._environment, self._model_name, self._directory, self._parameters, places
        )
        self._peer = Peer(self._process.socket, self._handlers(), in_a_thread)
        self._peer.start(self._on_end)
        self._started.wait()
        if not self._here:
            raise self._process.not_started()
        self._table.metrics.sources.append(self._metric_samples)
        self._ask(
            "load",
            self.runtime.instance_name,
            self.runtime.model_directory,
            self._model_file,
            self._of_backend,
            self._wait_s,
        )

    def complete_config(self, model_name: str, config_json: str) -> "Optional[Dict[str, Any]]":
        completed: Optional[Dict[str, Any]] = self._ask("complete", model_name, config_json)
        return completed

    def initialize(self, args: Dict[str, str], signature: Signature, options: ExecutionOptions) -> None:
        self.runtime.begin_initialize()
        self._ask("initialize", args)
        self._executor = self._remote_executor = RemoteExecutor(
            self.runtime, self.model, signature, options, self._wait_s, self._failures, self._ask
        )
        self.runtime.begin_serving(self._executor.new_stream)

    def is_ready(self) -> Tuple[bool, str]:
        ready, reason = self._ask("is_ready")
        return ready, reason

    def finalize(self, *, strict: bool) -> None:
        problem = self.executor.drain()
        self.runtime.begin_finalize()
        self.executor.close()
        if problem is not None:
            raise FinalizeError(problem)
        assert self._peer is not None
        try:
            self._peer.ask("finalize", strict, timeout_s=2 * self._wait_s)
        except PeerGone:
            if strict:
                raise FinalizeError(f"{self._whose_process()} has ended before finalize: {self._fate()}") from None
        except NoReply:
            raise FinalizeError("finalize does not return, or execute does not") from None

    def release(self) -> None:
        if self._peer is not None and self._process is not None:
            if self._metric_samples in self._table.metrics.sources:
                self._table.metrics.sources.remove(self._metric_samples)
                last = self._metric_samples()
                self._table.metrics.sources.append(lambda: last)
            self._peer.close()
            self._process.end()
        super().release()

    # The other process

    def _ask(self, name: str, *arguments: Any) -> Any:
        assert self._peer is not None
        try:
            return self._peer.ask(name, *arguments)
        except PeerGone:
            kind = LoadError if self._executor is None else HarnessError
            raise kind(f"{self._whose_process()} has ended: {self._fate()}") from None

    def _whose_process(self) -> str:
        return f"the process of '{self.runtime.instance_name}' in {self._environment}"

    def _fate(self) -> str:
        assert self._process is not None
        return self._process.fate()

    def _on_end(self) -> None:
        self._started.set()
        if self._remote_executor is not None:
            self._remote_executor.end(f"Stub process '{self.runtime.instance_name}' is not healthy.")

    def _metric_samples(self) -> Dict[str, float]:
        """The custom metrics there, as they were last if the process is gone or busy."""
        assert self._peer is not None
        try:
            self._samples = self._peer.ask("metrics", timeout_s=self._wait_s)
        except (PeerGone, NoReply):
            pass
        return self._samples

    # Its questions and statements

    def _handlers(self) -> "Dict[str, Callable[..., Any]]":
        name = self.runtime.instance_name
        return {
            "hello": self._on_hello,
            "log": lambda level, file, line, text: self._log.add(getattr(Logger, level), file, line, text),
            "arrival": self._on_arrival,
            "failure": lambda error: self._failures.keep(error_from_plain(error)),
            "call": self._on_call,
            "receive": lambda number: plain_response(self._replies[number].receive()),
            "cancel_call": lambda number: self._replies[number].cancel(),
            "load_model": lambda model, config, files: self._table.load(name, model, config, files),
            "unload_model": self._table.unload,
            "is_model_ready": lambda model, version: self._table.is_ready(name, model, version),
        }

    def _on_hello(self) -> None:
        self._here = True
        self._started.set()

    def _on_arrival(self, number: int, arrival: Plain) -> None:
        assert self._remote_executor is not None
        self._remote_executor.arrived(number, arrival)

    def _on_call(self, call: Plain, decoupled: bool) -> int:
        assert self._remote_executor is not None
        number = next(self._numbers)
        self._replies[number] = self._remote_executor.in_context(self._table.call, call_from_plain(call), decoupled)
        return number


class RemoteExecutor(ModelExecutor):
    """Runs ``execute`` in another process; waits for its responses here."""

    def __init__(
        self,
        runtime: HarnessRuntime,
        model: Any,
        signature: Signature,
        options: ExecutionOptions,
        wait_s: float,
        failures: PendingFailures,
        ask: "Callable[..., Any]",
    ) -> None:
        super().__init__(runtime, model, signature, options, wait_s, failures)
        self._ask = ask
        self._numbers = itertools.count(1)
        self._open: Dict[int, Exchange] = {}
        self._context = contextvars.copy_context()

    def in_context(self, call: "Callable[..., Replies]", request: Any, decoupled: bool) -> Replies:
        """Call another model as the code that called ``execute`` last."""
        return self._context.copy().run(call, request, decoupled=decoupled)

    def arrived(self, number: int, arrival: Plain) -> None:
        """Pass a response on to the request that it answers."""
        exchange = self._open.get(number)
        if exchange is None:
            return
        decoded = arrival_from_plain(arrival)
        if decoded.final:
            self._open.pop(number, None)
        exchange.put(decoded)

    def end(self, message: str) -> None:
        """Answer open requests with an error: the process has ended."""
        for number in list(self._open):
            exchange = self._open.pop(number, None)
            if exchange is not None:
                exchange.fail(TritonError(message))

    def _run(self, exchanges: "Sequence[Exchange]") -> None:
        self._context = contextvars.copy_context()
        plain = [self._plain(exchange) for exchange in exchanges]
        ended = self._ask("execute", plain)
        for exchange, has_ended in zip(exchanges, ended):
            exchange.ended = has_ended

    def _plain(self, exchange: Exchange) -> Plain:
        number = next(self._numbers)
        self._open[number] = exchange
        exchange.began = True
        exchange.number = number
        exchange.on_cancel = lambda: self._ask("cancel", number)
        inputs = [plain_tensor(tensor) for tensor in exchange.take_inputs()]
        options = exchange.options
        return number, inputs, list(exchange.requested), exchange.batch_size, tuple(options), exchange.cancelled

    def _no_response(self, exchange: Exchange, head: str) -> NoResponse:
        if exchange.began:
            exchange.ended = self._ask("has_ended", exchange.number)
        return super()._no_response(exchange, head)

    def whereabouts(self) -> str:
        where: str = self._ask("whereabouts")
        return where


class _NotHere:
    """Stands for the model object; every use is an error that says where it is."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise HarnessError(
            f"{self._reason}: a test cannot use its '{name}'. Run pytest inside that environment, or pass "
            "environment='here' if this one has the model's packages"
        )


__all__: List[str] = ["RemoteInstance"]
