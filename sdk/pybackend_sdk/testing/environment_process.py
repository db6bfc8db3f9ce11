"""The process in a model's environment: imports the model and calls it for a test in another process."""

import os
import queue
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, Optional

from pybackend_sdk.logger import Logger
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.testing.crossing import (
    Plain,
    plain_arrival,
    plain_call,
    plain_error,
    response_from_plain,
    tensor_from_plain,
)
from pybackend_sdk.testing.exchange import Arrival, Exchange, RequestOptions
from pybackend_sdk.testing.failures import PendingFailures
from pybackend_sdk.testing.instance import ModelInstance
from pybackend_sdk.testing.loading import options_of
from pybackend_sdk.testing.logs import ModelLog
from pybackend_sdk.testing.model_calls import ModelCalls
from pybackend_sdk.testing.model_modules import ModelModules
from pybackend_sdk.testing.model_table import ModelTable
from pybackend_sdk.testing.peer import Peer, in_a_thread
from pybackend_sdk.testing.runtime import HarnessRuntime
from pybackend_sdk.testing.signature import Signature, signature_of

_IN_THE_MAIN_THREAD = {"load", "complete", "initialize", "execute", "finalize"}
"""Questions that call the model's code in order. Others must be answered even while it runs."""


def main(socket_descriptor: int, error_descriptor: int) -> None:
    """Serve a test until it closes the connection.

    Args:
        socket_descriptor: connected to the test's process.
        error_descriptor: becomes stderr. Earlier output went to the test's message for a failed start.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test's process decides what Ctrl-C ends
    os.set_inheritable(socket_descriptor, False)
    sys.stderr.flush()
    os.dup2(error_descriptor, 2)
    os.close(error_descriptor)
    _Service(socket.socket(fileno=socket_descriptor)).serve()


class _Service:
    """The model, for the test's process."""

    def __init__(self, sock: socket.socket) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        names = ("load", "complete", "initialize", "execute", "finalize", "is_ready", "metrics", "cancel")
        handlers = {name: getattr(self, f"_{name}") for name in (*names, "has_ended", "whereabouts")}
        self._peer = Peer(sock, handlers, self._run)
        self._table = _Table(self._peer)
        self._instance: Optional[ModelInstance] = None
        self._signature: Optional[Signature] = None
        self._exchanges: Dict[int, _Exchange] = {}

    def serve(self) -> None:
        """Run the model's code in this thread."""
        self._peer.start(_end)
        self._peer.tell("hello")
        while True:
            self._jobs.get()()

    def _run(self, name: str, handle: Callable[[], None]) -> None:
        if name in _IN_THE_MAIN_THREAD:
            self._jobs.put(handle)
        else:
            in_a_thread(name, handle)

    def _opened(self) -> ModelInstance:
        assert self._instance is not None
        return self._instance

    # Questions

    def _load(
        self, instance_name: str, version_directory: str, model_file: str, of_backend: bool, wait_s: float
    ) -> None:
        runtime = HarnessRuntime(
            instance_name,
            version_directory,
            ModelModules(model_file, of_backend),
            _Log(self._peer),
            self._table,
            self._table.metrics,
            ModelCalls(self._table),
        )
        self._instance = ModelInstance(runtime, model_file, wait_s, self._table.failures)
        self._instance.load()

    def _complete(self, model_name: str, config_json: str) -> "Optional[Dict[str, Any]]":
        return self._opened().complete_config(model_name, config_json)

    def _initialize(self, args: Dict[str, str]) -> None:
        document = _document(args)
        self._signature = signature_of(document)
        self._opened().initialize(args, self._signature, options_of(document))

    def _execute(self, plain: "List[Plain]") -> "List[bool]":
        exchanges = [self._exchange(*each) for each in plain]
        self._opened().executor.execute(exchanges)
        return [exchange.ended for exchange in exchanges]

    def _exchange(
        self,
        number: int,
        inputs: "List[Plain]",
        requested: "List[str]",
        batch_size: int,
        options: Plain,
        cancelled: bool,
    ) -> "_Exchange":
        assert self._signature is not None
        exchange = self._exchanges[number] = _Exchange(
            self._signature,
            [tensor_from_plain(tensor) for tensor in inputs],
            tuple(requested),
            batch_size,
            RequestOptions(*options),
        )
        exchange.number, exchange.peer = number, self._peer
        exchange.cancelled = cancelled
        return exchange

    def _finalize(self, strict: bool) -> None:
        self._opened().finalize(strict=strict)

    def _is_ready(self) -> Plain:
        return self._opened().is_ready()

    def _metrics(self) -> Dict[str, float]:
        return dict(self._table.metrics)

    def _cancel(self, number: int) -> None:
        exchange = self._exchanges.get(number)
        if exchange is not None:
            exchange.cancel()

    def _has_ended(self, number: int) -> bool:
        return self._exchanges[number].ended

    def _whereabouts(self) -> str:
        return self._opened().executor.whereabouts()


class _Exchange(Exchange):
    """A request whose responses arrive in the test's process.

    Attributes:
        peer: the test's process.
    """

    peer: Peer

    def put(self, arrival: Arrival) -> None:
        self.finished = self.finished or arrival.final
        self.peer.tell("arrival", self.number, plain_arrival(arrival))


class _Log(ModelLog):
    """Lines of the model, for the log in the test's process."""

    def __init__(self, peer: Peer) -> None:
        super().__init__("")
        self._peer = peer

    def add(self, level: Logger.LogLevel, file: str, line: int, message: str) -> None:
        self._peer.tell("log", level.name, file, line, message)


class _Failures(PendingFailures):
    """Failures that the test must see."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    def keep(self, error: BaseException) -> None:
        self._peer.tell("failure", plain_error(error))


class _Table(ModelTable):
    """The other models, which are known in the test's process."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self.failures = _Failures(peer)
        self._peer = peer

    def call(self, request: InferenceRequest, *, decoupled: bool) -> "_Replies":
        return _Replies(self._peer, self._peer.ask("call", plain_call(request), decoupled))

    def load(self, instance_name: str, name: str, config: str, files: "Optional[Dict[str, bytes]]") -> None:
        self._peer.ask("load_model", name, config, files)

    def unload(self, name: str) -> None:
        self._peer.ask("unload_model", name)

    def is_ready(self, instance_name: str, name: str, version: str) -> bool:
        ready: bool = self._peer.ask("is_model_ready", name, version)
        return ready


class _Replies:
    """The responses of another model."""

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer = peer
        self._number = number

    def receive(self) -> Optional[InferenceResponse]:
        return response_from_plain(self._peer.ask("receive", self._number))

    def cancel(self) -> None:
        self._peer.ask("cancel_call", self._number)


def _document(args: Dict[str, str]) -> Any:
    import json

    return json.loads(args["model_config"])


def _end() -> None:
    """End this process: the test has closed the connection."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
