"""The stub's main loop: receive, dispatch, answer. It knows messages and leaves the model to the executor."""

import os
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Any, Dict, List, Optional

import numpy as np

from pybackend_sdk.logger import Logger
from pybackend_sdk.model_class import check_execute
from pybackend_sdk.model_loader import complete_config, import_model
from pybackend_sdk.runtime import bind_runtime
from pybackend_stub.answers import AnswerQueue
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_stub.client_memory import ClientMemory
from pybackend_stub.error_log import BUNDLE, ErrorLog, format_error, write_load_error
from pybackend_stub.executor import ModelExecutor
from pybackend_stub.forks import ForkRelay
from pybackend_stub.host_calls import HostCalls
from pybackend_stub.imports import when_imported
from pybackend_stub.memory import StubMemory
from pybackend_stub.metrics import StubMetrics
from pybackend_stub.model_calls import ModelCalls
from pybackend_stub.model_control import ModelControl
from pybackend_stub.model_output import flush_output
from pybackend_stub.process import be_called
from pybackend_stub.readiness import ReadinessCheck
from pybackend_stub.receiver import Attendant, Receiver, Work
from pybackend_stub.refusals import watch
from pybackend_stub.responder import Responder
from pybackend_stub.results import ResultWriter, UnknownOutputs
from pybackend_stub.runtime import StubRuntime
from pybackend_stub.stacks import tell_stacks
from pybackend_stub.tensor_io import OutputWriter, TensorReader
from pybackend_stub.waiting_core import WaitingCore
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.host_messages import (
    Answer,
    Attach,
    Cancel,
    Detach,
    Execute,
    Flow,
    FreeOutput,
    FromHost,
    Initialize,
    Load,
    ModelToLoad,
    NoOutput,
    Probe,
    Reply,
)
from pybackend_wire.messages import ATTENDED_FROM, Failure, SegmentRole
from pybackend_wire.stub_messages import (
    Completed,
    Detached,
    DroppedOutput,
    Failed,
    Finalized,
    FreeInput,
    HandedBack,
    Initialized,
    Readiness,
)

_MOST_NAME = 1000
"""Most characters of an unknown output's name that the host is told."""


def _take_over_breakpoints(terminal: "Optional[int]", debugged: bool) -> None:
    from pybackend_stub.breakpoints import take_over

    take_over(terminal, debugged)


class StubLoop:
    """One instance of one model, from HELLO to FINALIZED.

    Args:
        channel: connection to the host.
        nudges: the end of a pipe that the host writes to when it needs an answer now.
        confined: the sandbox's report about this process; None without a sandbox.
    """

    def __init__(self, channel: HostChannel, nudges: int, confined: "Optional[Dict[str, str]]") -> None:
        self._channel = channel
        self._confined = confined
        self._memory = StubMemory(self._input_released)
        self._regions = ClientMemory()
        self._receiver = Receiver(channel, self._handle, self._hand_back, WaitingCore(self._memory))
        self._attendant = Attendant(nudges, self._receiver)
        self._answers = AnswerQueue(channel)
        self._attendant.on_nudge = self._answers.on_nudge
        self._receiver.on_need(self._attendant.wake)
        self._main_thread = threading.get_ident()
        self._model_class: Optional[type] = None
        self._model: Any = None
        self._model_file = ""
        self._instance_name = ""
        self._model_name = ""
        self._runtime: Optional[StubRuntime] = None
        self._writer: Optional[OutputWriter] = None
        self._calls: Optional[HostCalls] = None
        self._responder: Optional[Responder] = None
        self._readiness: Optional[ReadinessCheck] = None
        self._executor: Optional[ModelExecutor] = None
        self._executing = 0
        self._terminal: Optional[int] = None

    def run(self) -> int:
        """Serve until the host sends FINALIZE or goes away; returns the exit status."""
        try:
            self._channel.greet(np.__version__, self._confined or {})
            while True:
                message, tail = self._next_work()
                if isinstance(message, Execute):
                    self._execute(message, tail)
                elif isinstance(message, Load):
                    if not self._load(message):
                        return 0
                elif isinstance(message, Initialize):
                    if not self._initialize(message):
                        return 0
                else:
                    self._finalize()
                    return 0
                del message, tail
        except HostGone:
            # Exit at once: the model's threads or exit handlers could keep the process alive.
            os._exit(0)

    def _next_work(self) -> Work:
        """Return the next message for this thread. Before it waits, everything that others wait for has been sent."""
        work = self._receiver.take_work()
        if work is None:
            self._answers.end_of_frame()
            self._return_inputs()
            work = self._receiver.next_work()
        return work

    def _handle(self, message: FromHost, tail: bytearray) -> None:
        """Act on a message that is not work for the main thread, in the thread that read it."""
        if isinstance(message, FreeOutput):
            for segment, offset in message.blocks:
                self._memory.free_output(segment, offset)
        elif isinstance(message, (Reply, Answer)):
            assert self._calls is not None
            self._calls.on_message(message, tail)
        elif isinstance(message, Attach):
            self._attach(message, self._channel.descriptors.popleft())
        elif isinstance(message, NoOutput):
            assert self._writer is not None
            self._writer.on_refused()
        elif isinstance(message, Detach):
            if not self._regions.detach(message.segment) and self._memory.detach(message.segment):
                self._channel.say(Detached(message.segment))
        elif isinstance(message, Cancel):
            assert self._responder is not None
            self._responder.on_cancel((message.execution, message.request))
        elif isinstance(message, Flow):
            assert self._responder is not None
            self._responder.on_flow((message.execution, message.request), message.allowed)
        else:
            assert isinstance(message, Probe)
            assert self._readiness is not None
            self._receiver.leave_core()
            self._readiness.start()

    def _attach(self, message: Attach, descriptor: int) -> None:
        if message.role == SegmentRole.TERMINAL:
            self._terminal = descriptor
            return
        if message.role == SegmentRole.REGION:
            self._regions.attach(message.segment, descriptor, message.size_bytes)
            return
        if message.role == SegmentRole.PROGRESS:
            tell_stacks(os.dup(descriptor))
        self._memory.attach(message.segment, descriptor, message.size_bytes, message.role)
        if message.role == SegmentRole.OUTPUT and self._writer is not None:
            self._writer.on_grown()

    def _hand_back(self, executions: "List[int]") -> None:
        self._channel.say(HandedBack(executions))

    def _load(self, load: Load) -> bool:
        self._channel.use_codec(load.codec)
        model = ModelToLoad(*load.model)
        if self._confined is not None:
            watch(model.instance_name)
        self._model_file = model.model_file
        self._instance_name = model.instance_name
        self._model_name = model.model_name
        be_called(model.instance_name)
        self._runtime = StubRuntime(model.version_directory, model.instance_name, model.backend_settings)
        bind_runtime(self._runtime)
        when_imported("pdb", partial(_take_over_breakpoints, self._terminal, model.debugger is not None))
        phase = f"cannot import {model.model_file}"
        try:
            if model.debugger is not None:
                from pybackend_stub.debugger import start_debugger

                start_debugger(*model.debugger, BUNDLE)
            self._model_class = import_model(model.model_file, of_backend=model.of_backend)
            completed = None
            if load.auto_complete_config is not None:
                phase = "Failed to initialize Python stub for auto-complete"
                completed = complete_config(self._model_class, model.model_name, load.auto_complete_config)
        except BaseException as error:  # noqa: BLE001  an import that calls sys.exit() fails the load, nothing else
            return self._fail("load", phase, error)
        self._channel.say(Completed(completed))
        return True

    def _initialize(self, plan: Initialize) -> bool:
        assert self._model_class is not None
        assert self._runtime is not None
        channel, receiver, memory, name = self._channel, self._receiver, self._memory, self._instance_name
        self._regions.maps = plan.maps_regions
        self._writer = writer = OutputWriter(channel, receiver, memory, self._regions, name)
        self._runtime.outputs = writer
        self._calls = calls = HostCalls(channel, receiver, memory)
        self._runtime.metrics = StubMetrics(calls, name)
        self._runtime.control = ModelControl(calls, writer, name)
        ForkRelay(self._on_fork).install()
        try:
            self._model = self._model_class()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(plan.args)
            check_execute(self._model, self._model_file)
        except BaseException as error:  # noqa: BLE001  as in _load
            return self._fail("initialize", "Failed to initialize Python stub", error)
        reader = TensorReader(memory, self._regions, plan.output_names, plan.copy_inputs, self._model_name)
        tell = self._tell_dropped if plan.drops_unknown_outputs else None
        results = ResultWriter(writer, name, format_error, UnknownOutputs(plan.output_names, tell))
        self._responder = self._runtime.responder = Responder(channel, receiver, results, plan.decoupled)
        self._executor = ModelExecutor(
            self._model,
            reader,
            results,
            self._answers,
            ErrorLog(self._model_file, getattr(self._model, "execute", None)),
            plan.decoupled,
            plan.concurrency,
            plan.reschedules,
        )
        receiver.hands_back = not self._executor.only_begins
        is_ready = getattr(self._model, "is_ready", None)
        if is_ready is not None:
            self._readiness = ReadinessCheck(is_ready, self._executor, self._answer_readiness, format_error, name)
            self._attendant.start()  # the host may probe while the main thread is busy
        self._runtime.models = ModelCalls(calls, receiver, reader, writer, self._current_execution, self._before_call)
        channel.say(Initialized(is_ready is not None))
        return True

    def _on_fork(self) -> None:
        """In a process that the model forked, give up the host's socket and the parent's input memory."""
        self._memory.disown()
        self._channel.disown()

    def _tell_dropped(self, name: str) -> None:
        self._channel.say(DroppedOutput(shortened(name, _MOST_NAME)))

    def _answer_readiness(self, ready: bool, reason: str) -> None:
        with suppress(HostGone):
            self._channel.say(Readiness(ready, shortened(reason, MOST_TEXT)))

    def _before_call(self) -> None:
        """Before a model waits for another one, send finished answers and hand back executions that have not begun."""
        self._answers.flush()
        self._receiver.return_work()

    def _current_execution(self) -> int:
        """The execution that the calling thread works for, 0 for threads that the model started."""
        if threading.get_ident() == self._main_thread:
            return self._executing
        coroutines = sys.modules.get("pybackend_stub.coroutines")
        return 0 if coroutines is None else coroutines.current_execution()

    def _fail(self, phase: str, what: str, error: BaseException) -> bool:
        write_load_error(what, error)
        failure = Failure(ErrorCode.INTERNAL, shortened(format_error(error), MOST_TEXT))
        flush_output()  # the model's own output about it; the host does not wait for this process to end
        self._channel.say(Failed(phase, failure))
        return False

    def _execute(self, message: Execute, tail: bytearray) -> None:
        if self._executor is None:
            raise RemoteProtocolError("EXECUTE before INITIALIZE")
        execution, requests = message
        if execution >= ATTENDED_FROM or self._receiver.has_more_work:
            self._attendant.start()  # if this takes long, prefetched executions go to another instance
        self._executing = execution
        self._memory.mark_begun(execution)
        ready_ns = self._executor.run(execution, requests, tail)
        self._executing = 0
        released = self._memory.take_released()
        if released:
            self._answers.add_released(released)
        if self._receiver.has_more_work:
            self._answers.keep_or_flush(ready_ns)

    def _finalize(self) -> None:
        self._answers.flush()
        if self._runtime is not None:
            self._runtime.models = self._runtime.control = None
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:  # noqa: BLE001  a failing finalize does not stop the end of the model
                Logger.log_info(f"Failed to finalize model: {format_error(error)}")
        self._receiver.end()
        self._channel.say(Finalized())
        flush_output()

    def _input_released(self) -> None:
        """Called by the garbage collector in any thread; while the main thread waits, no other code tells the host."""
        if self._receiver.is_idle:
            with suppress(HostGone):  # the main thread is about to read the end of file
                self._return_inputs()

    def _return_inputs(self) -> None:
        released = self._memory.take_released()
        if released:
            self._channel.say(FreeInput(released))
