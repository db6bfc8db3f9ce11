"""One instance of a model: imported, completed, initialised, executed, finalized.

A stub runs one, and so does a test harness for each model. This module knows the messages about a model; its owner
decides who receives them, and in which thread the model's code runs.
"""

import gc
import os
import sys
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, Optional, Sequence

from pybackend_sdk.logger import Logger
from pybackend_sdk.model_loader import check_execute, complete_config, import_model
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_stub.client_memory import PassedRegions
from pybackend_stub.error_log import ErrorLog
from pybackend_stub.executor import ModelExecutor, OnceExecutor, StreamExecutor
from pybackend_stub.host_calls import HostCalls, LoadCalls, StubMetrics
from pybackend_stub.memory import StubMemory
from pybackend_stub.model_calls import ModelCalls
from pybackend_stub.process import tell_stacks
from pybackend_stub.receiver import Receiver
from pybackend_stub.responder import Responder
from pybackend_stub.results import AnswerQueue, ResultWriter, UnknownOutputs
from pybackend_stub.runtime import StubRuntime
from pybackend_stub.tensor_io import OutputWriter, TensorReader
from pybackend_wire.errors import RemoteProtocolError
from pybackend_wire.host_messages import (
    Answer,
    Attach,
    Cancel,
    Collect,
    Detach,
    Flow,
    FreeOutput,
    FromHost,
    Initialize,
    ModelToLoad,
    NoOutput,
    Offer,
    Probe,
    Reply,
    Then,
)
from pybackend_wire.messages import ATTENDED_FROM, BEGUN_WORD, SegmentRole
from pybackend_wire.stub_messages import Detached, DroppedOutput, Readiness


class ReadinessCheck:
    """Calls a model's ``is_ready``, each time in a new thread; the host probes again only after an answer.

    Args:
        executor: its event loop runs ``is_ready`` if that is a coroutine function.
        answer: receives the result, and the reason if it is not True.
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


_MOST_NAME = 1000
"""Most characters of an unknown output's name that the host is told."""


class ModelInstance:
    """A model object, and all that serves it."""

    receiver: Receiver
    attend: "Callable[[], None]"

    def __init__(self, channel: HostChannel, memory: StubMemory, errors: ErrorLog) -> None:
        self.answers = AnswerQueue(channel)
        self.model: Any = None
        self.executor: Optional[ModelExecutor] = None
        self.writer: Optional[OutputWriter] = None
        self.results: Optional[ResultWriter] = None
        self.terminal: Optional[int] = None
        self._channel = channel
        self._memory = memory
        self._errors = errors
        self._regions = PassedRegions()
        self._main_thread = threading.get_ident()
        self._model_class: Optional[type] = None
        self._model_file = ""
        self._model_name = ""
        self._runtime: Optional[StubRuntime] = None
        self._calls: Optional[HostCalls] = None
        self._responder: Optional[Responder] = None
        self._readiness: Optional[ReadinessCheck] = None
        self._executing = 0
        self._attended = False
        self.make_calls: Callable[..., ModelCalls] = ModelCalls
        self.make_reader: Callable[..., TensorReader] = TensorReader
        self.on_group_message: Callable[[FromHost, bytearray], None] = lambda _message, _tail: None

    def connect(self, receiver: Receiver, attend: "Callable[[], None]") -> None:
        """Set who passes messages to :meth:`handle`, and what to call if some may come while the model's code runs."""
        self.receiver, self.attend = receiver, attend

    # Life. Exceptions of the model's code are the caller's.

    def load(
        self, model: ModelToLoad, runtime: StubRuntime, import_class: "Callable[..., type]" = import_model
    ) -> None:
        self._model_file, self._model_name, self._runtime = model.model_file, model.model_name, runtime
        self._errors.place = model.model_file, 0
        self._model_class = import_class(model.model_file, of_backend=model.of_backend)

    def complete(self, config_json: str) -> "Optional[Dict[str, Any]]":
        """Run ``auto_complete_config`` on the configuration; None if the model has no such function."""
        assert self._model_class is not None
        return complete_config(self._model_class, self._model_name, config_json)

    def initialize(self, plan: Initialize) -> bool:
        """Make the model object and initialise it; returns whether it has ``is_ready``."""
        assert self._model_class is not None
        assert self._runtime is not None
        channel, receiver, memory, errors, runtime = (
            self._channel, self.receiver, self._memory, self._errors, self._runtime,
        )  # fmt: skip
        name = runtime.instance_name
        self._regions.maps = plan.maps_regions
        self.writer = writer = OutputWriter(channel, receiver, memory, self._regions, name)
        runtime.outputs = writer
        self._calls = calls = HostCalls(channel, receiver, memory, self.answers)
        runtime.metrics = StubMetrics(calls, name)
        runtime.control = LoadCalls(calls, writer, name)
        self.model = self._model_class()
        code = getattr(getattr(self.model, "execute", None), "__code__", None)
        if code is not None:
            self._errors.place = code.co_filename, code.co_firstlineno
        initialize = getattr(self.model, "initialize", None)
        if initialize is not None:
            initialize(plan.args)
        check_execute(self.model, self._model_file)
        reader = self.make_reader(memory, self._regions, plan.output_names, plan.copy_inputs, self._model_name)
        tell = self._tell_dropped if plan.drops_unknown_outputs else None
        self.results = results = ResultWriter(writer, name, errors.format, UnknownOutputs(plan.output_names, tell))
        self._responder = runtime.responder = Responder(channel, receiver, results, plan.decoupled)
        executes = StreamExecutor if plan.decoupled else OnceExecutor
        self.executor = executes(self.model, reader, results, self.answers, errors, plan)
        receiver.hands_back = not self.executor.only_begins
        is_ready = getattr(self.model, "is_ready", None)
        if is_ready is not None:
            self._readiness = ReadinessCheck(is_ready, self.executor, self._answer_readiness, errors.format, name)
            self.attend()  # the host may probe while the main thread is busy
        runtime.models = self.make_calls(calls, receiver, reader, writer, self._current_execution, self._before_call)
        return is_ready is not None

    def execute(self, execution: int, requests: "Sequence[Any]", tail: bytearray) -> None:
        """Run ``execute`` once; the answer is queued, and sent at once if it cannot wait for others."""
        executor, memory, waiting = self.executor, self._memory, self.receiver.work
        if executor is None:
            raise RemoteProtocolError("EXECUTE before INITIALIZE")
        if not self._attended and (execution >= ATTENDED_FROM or waiting):
            self._attended = True
            self.attend()  # if this takes long, prefetched executions go to another instance
        self._executing = execution
        memory.progress[BEGUN_WORD] = execution
        ready_ns = executor.run(execution, requests, tail)
        self._executing = 0
        if memory.released:
            self.answers.add_released(memory.take_released())
        if waiting:
            self.answers.keep_or_flush(ready_ns)

    def finalize(self) -> "Optional[BaseException]":
        """Send the last answers and call ``finalize``; an exception from it is logged and returned."""
        self.answers.flush()
        if self._runtime is not None:
            self._runtime.models = self._runtime.control = None
        finalize = getattr(self.model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:  # noqa: BLE001  a failing finalize does not stop the end of the model
                Logger.log_info(f"Failed to finalize model: {self._errors.format(error)}")
                return error
        return None

    # Messages

    def handle(self, message: FromHost, tail: bytearray) -> None:
        """Act on a message that is not about the model's life, in the thread that received it."""
        if isinstance(message, FreeOutput):
            for segment, offset in message.blocks:
                self._memory.free_output(segment, offset)
        elif isinstance(message, (Reply, Answer)):
            assert self._calls is not None
            self._calls.on_message(message, tail)
        elif isinstance(message, Attach):
            self._attach(message, self._channel.descriptors.popleft())
        elif isinstance(message, NoOutput):
            assert self.writer is not None
            self.writer.on_refused(message.reason)
        elif isinstance(message, Detach):
            if not self._regions.detach(message.segment) and self._memory.detach(message.segment):
                self._channel.say(Detached(message.segment))
        elif isinstance(message, Cancel):
            assert self._responder is not None
            self._responder.on_cancel((message.execution, message.request))
        elif isinstance(message, Flow):
            assert self._responder is not None
            self._responder.on_flow((message.execution, message.request), message.allowed)
        elif isinstance(message, Collect):
            gc.collect()
        elif isinstance(message, (Offer, Then)):
            self.on_group_message(message, tail)
        else:
            assert isinstance(message, Probe)
            assert self._readiness is not None
            self._readiness.start()

    def _attach(self, message: Attach, descriptor: int) -> None:
        if message.role == SegmentRole.REGION:
            self._regions.attach(message.segment, descriptor, message.size_bytes)
            return
        if message.role == SegmentRole.TERMINAL:
            self.terminal = descriptor
            return
        if message.role == SegmentRole.PROGRESS and threading.current_thread() is threading.main_thread():
            tell_stacks(os.dup(descriptor))
        self._memory.attach(message.segment, descriptor, message.size_bytes, message.role)
        if message.role == SegmentRole.OUTPUT and self.writer is not None:
            self.writer.on_grown()

    def _tell_dropped(self, name: str) -> None:
        self._channel.say(DroppedOutput(shortened(name, _MOST_NAME)))

    def _answer_readiness(self, ready: bool, reason: str) -> None:
        with suppress(HostGone):
            self._channel.say(Readiness(ready, shortened(reason, MOST_TEXT)))

    def _before_call(self) -> None:
        """Before a model waits for another one, hand back executions that have not begun, after finished answers."""
        if self.receiver.work:
            self.answers.flush()
            self.receiver.return_work()

    def _current_execution(self) -> int:
        """The execution that the calling thread works for, 0 for threads that the model started."""
        if threading.get_ident() == self._main_thread:
            return self._executing
        coroutines = sys.modules.get("pybackend_stub.coroutines")
        return 0 if coroutines is None else coroutines.current_execution()
