"""A model in the test's process, run by the stub's own code; its socket is replaced by calls in both directions.

Several models are open in one process, as in a stub that is the process of a group: see :mod:`pybackend_stub.runtimes`.
"""

import mmap
import sys
import threading
from collections import deque
from contextlib import contextmanager
from typing import Any, Deque, Dict, Iterator, Optional, Sequence, Tuple

from pybackend_sdk.logger import Logger
from pybackend_stub.channel import HostChannel, Unsent
from pybackend_stub.error_log import ErrorLog
from pybackend_stub.instance import ModelInstance
from pybackend_stub.memory import StubMemory
from pybackend_stub.model_modules import ModelModules
from pybackend_stub.receiver import Receiver, Waiter, Work
from pybackend_stub.runtimes import SharedRuntime, attach, detach, entered
from pybackend_testing.errors import LoadError, PendingFailures, contained, format_error
from pybackend_testing.host import Execution, Host, ModelProcess
from pybackend_testing.logs import ModelLog
from pybackend_wire.host_messages import Execute, FromHost, Initialize, ModelToLoad
from pybackend_wire.messages import SegmentRole
from pybackend_wire.stub_messages import STUB_MESSAGES, FromStub


class HarnessRuntime(SharedRuntime):
    """One model's services: those of a stub, with a log for the test."""

    def __init__(self, instance_name: str, model_directory: str, modules: ModelModules, log: ModelLog) -> None:
        super().__init__(model_directory, instance_name, {}, modules)
        self._log = log

    def log(self, level: int, file: str, line: int, message: str) -> None:
        self._log.add(Logger.LogLevel(level), file, line, message)


class _Channel(HostChannel):
    """Passes the model's messages to the host at once, in the thread that sends them."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def say(self, message: FromStub, tail: "Sequence[Any]" = ()) -> None:
        self._host.on_message(message, b"".join(tail))

    def send(
        self, messages: "Sequence[Tuple[Any, ...]]", tail: "Sequence[Any]" = (), before: "Optional[Unsent]" = None
    ) -> None:
        if before is not None:
            self.send(*before)
        whole = b"".join(tail)
        for kind, *fields in messages:
            self._host.on_message(STUB_MESSAGES[kind](*fields), whole)

    def is_inherited(self) -> bool:
        """False: a fork of the test's process has the host, too."""
        return False


class _Receiver(Receiver):
    """Lets threads wait for the host's messages, which the host's threads handle."""

    def __init__(self, host: Host) -> None:
        self.work: Deque[Work] = deque()
        self._host = host

    def wait(self, waiter: Waiter) -> None:
        while not waiter.done:
            self._host.calls.demand()
            waiter.sleep()

    def finish(self, waiter: Waiter) -> None:
        waiter.done = True
        waiter.wake()

    def poll(self) -> None:
        """Do nothing: no message waits anywhere. So for the other methods."""

    expect = expected_came = return_work = poll


class _Errors(ErrorLog):
    """Keeps the exceptions of executions for their results, and those that are not the model's for the test."""

    def __init__(self, host: Host, failures: PendingFailures) -> None:
        super().__init__()
        self._host = host
        self._failures = failures

    def format(self, error: BaseException) -> str:
        if not contained(error):
            self._failures.keep(error)
        return format_error(error)

    def write(self, text: str, error: BaseException, execution: int, ids: "Sequence[str]") -> None:
        self._host.note_failure(execution, error)
        Logger.log_error(text)


class LocalProcess(ModelProcess):
    """A model in this process. It waits ``wait_s`` for the model's coroutines at its end."""

    def __init__(self, host: Host, runtime: HarnessRuntime, wait_s: float, failures: PendingFailures) -> None:
        self._runtime = runtime
        self._wait_s = wait_s
        self._memory = StubMemory(lambda: None)
        receiver = _Receiver(host)
        self._instance = ModelInstance(_Channel(host), self._memory, _Errors(host, failures))
        self._instance.connect(receiver, receiver.poll)
        self._thread_ident = 0

    @property
    def model(self) -> Any:
        return self._instance.model

    def load(self, model: ModelToLoad, config_json: Optional[str]) -> "Optional[Dict[str, Any]]":
        attach(self._runtime)
        with self._loading():
            self._instance.load(model, self._runtime, lambda _file, **_: self._runtime.modules.load())
            return None if config_json is None else self._instance.complete(config_json)

    def initialize(self, plan: Initialize) -> bool:
        with self._loading():
            return self._instance.initialize(plan)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            with entered(self._runtime):
                yield
        except BaseException as error:
            if not contained(error):
                raise
            raise LoadError(format_error(error)) from error

    def send(self, message: FromHost) -> None:
        self._instance.handle(message, bytearray())

    def execute(self, execution: Execution, message: Execute) -> None:
        self._thread_ident = threading.get_ident()
        with entered(self._runtime):
            self._instance.execute(*message, bytearray())
            self._instance.answers.flush()

    def attach(self, number: int, size: int, role: SegmentRole) -> Any:
        """Map memory of which a fork of this process has a private copy."""
        mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.add(number, mapping, role)
        if role == SegmentRole.OUTPUT and self._instance.writer is not None:
            self._instance.writer.on_grown()
        return mapping

    def runs(self, execution: int) -> bool:
        executor = self._instance.executor
        return executor is not None and executor.awaits(execution)

    def whereabouts(self) -> str:
        frame = sys._current_frames().get(self._thread_ident)
        while frame is not None:
            if self._runtime.modules.has(frame.f_code.co_filename):
                code = frame.f_code
                return f"it is at {code.co_filename}({frame.f_lineno}): {code.co_name}"
            frame = frame.f_back
        return "another request is still being executed"

    def finalize(self) -> Tuple[str, Optional[BaseException]]:
        with entered(self._runtime):
            error = self._instance.finalize()
        if error is not None and not contained(error):
            raise error
        return "" if error is None else f"finalize raised: {format_error(error)}", error

    def release(self) -> None:
        if self._instance.executor is not None:
            self._instance.executor.close(self._wait_s)
        self._runtime.modules.close()
        detach(self._runtime)
