"""The stub's main loop: receive, dispatch, answer. It knows messages; models are the executor's business."""

import os
import sys
import threading
from contextlib import suppress
from typing import Any, Dict, List, Optional

import numpy as np

from pybackend_sdk.error import format_exception
from pybackend_sdk.logger import Logger
from pybackend_sdk.model_loader import complete_config, import_model
from pybackend_sdk.runtime import bind_runtime
from pybackend_stub.answers import AnswerQueue
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_stub.executor import ModelExecutor
from pybackend_stub.forks import ForkRelay
from pybackend_stub.host_calls import HostCalls
from pybackend_stub.memory import StubMemory
from pybackend_stub.metrics import StubMetrics
from pybackend_stub.model_calls import ModelCalls
from pybackend_stub.model_control import ModelControl
from pybackend_stub.model_output import flush_output
from pybackend_stub.process import be_called
from pybackend_stub.readiness import ReadinessCheck
from pybackend_stub.receiver import Attendant, Receiver, Work
from pybackend_stub.refusals import note, watch
from pybackend_stub.responder import Responder
from pybackend_stub.results import ResultWriter
from pybackend_stub.runtime import StubRuntime
from pybackend_stub.tensor_io import OutputWriter, TensorReader
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.messages import ATTENDED_FROM, Failure, HostMessage, SegmentRole, StubMessage

_BUNDLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class StubLoop:
    """One instance of one model, from HELLO to FINALIZED.

    Args:
        channel: to the host.
        nudges: the counter by which the host asks to be heard at once.
        confined: the sandbox's report about this process.
    """

    def __init__(self, channel: HostChannel, nudges: int, confined: "Dict[str, str]") -> None:
        self._channel = channel
        self._confined = confined
        self._memory = StubMemory(self._input_released)
        self._receiver = Receiver(channel, self._handle, self._hand_back)
        self._attendant = Attendant(nudges, self._receiver)
        self._answers = AnswerQueue(channel)
        self._attendant.on_nudge = self._answers.on_nudge
        self._receiver.on_need(self._attendant.wake)
        self._main_thread = threading.get_ident()
        self._model_class: Optional[type] = None
        self._model: Any = None
        self._model_file = ""
        self._instance_name = ""
        self._runtime: Optional[StubRuntime] = None
        self._writer: Optional[OutputWriter] = None
        self._calls: Optional[HostCalls] = None
        self._responder: Optional[Responder] = None
        self._readiness: Optional[ReadinessCheck] = None
        self._executor: Optional[ModelExecutor] = None
        self._executing = 0

    def run(self) -> int:
        """Serve until the host says FINALIZE or goes away; returns the exit status."""
        try:
            self._channel.greet(np.__version__, self._confined)
            while True:
                message, tail = self._next_work()
                kind = message[0]
                if kind == HostMessage.EXECUTE:
                    self._execute(message, tail)
                elif kind == HostMessage.LOAD:
                    if not self._load(*message[1:]):
                        return 0
                elif kind == HostMessage.INITIALIZE:
                    if not self._initialize(*message[1:]):
                        return 0
                else:
                    self._finalize()
                    return 0
                del message, tail
        except HostGone:
            # Nobody is left to serve. A model's threads or exit handlers could keep the process alive.
            os._exit(0)

    def _next_work(self) -> Work:
        """What the host wants next. Before this thread rests, all that others could wait for is on its way."""
        work = self._receiver.take_work()
        if work is None:
            self._answers.end_of_frame()
            self._return_inputs()
            work = self._receiver.next_work()
        return work

    def _handle(self, message: "List[Any]", tail: bytearray) -> None:
        """What is no work for the main thread, in whatever thread has read it."""
        kind = message[0]
        if kind == HostMessage.FREE_OUTPUT:
            for segment, offset in message[1]:
                self._memory.free_output(segment, offset)
        elif kind in (HostMessage.REPLY, HostMessage.ANSWER):
            assert self._calls is not None
            self._calls.on_message(message, tail)
        elif kind == HostMessage.ATTACH:
            self._memory.attach(message[1], self._channel.descriptors.popleft(), message[2], message[3])
            if message[3] == SegmentRole.OUTPUT and self._writer is not None:
                self._writer.on_grown()
        elif kind == HostMessage.NO_OUTPUT:
            assert self._writer is not None
            self._writer.on_refused()
        elif kind == HostMessage.DETACH:
            if self._memory.detach(message[1]):
                self._channel.send([(StubMessage.DETACHED, message[1])])
        elif kind == HostMessage.CANCEL:
            assert self._responder is not None
            self._responder.on_cancel((message[1], message[2]))
        elif kind == HostMessage.FLOW:
            assert self._responder is not None
            self._responder.on_flow((message[1], message[2]), message[3])
        elif kind == HostMessage.PROBE:
            assert self._readiness is not None
            self._readiness.start()
        else:
            raise RemoteProtocolError(f"the host sent a message of unknown kind {kind}")

    def _hand_back(self, executions: "List[int]") -> None:
        self._channel.send([(StubMessage.HANDED_BACK, executions)])

    def _load(
        self,
        codec: str,
        model_file: str,
        model_name: str,
        instance_name: str,
        version_directory: str,
        config_json: "Optional[str]",
        of_backend: bool,
        debugger: "Optional[List[Any]]",
    ) -> bool:
        self._channel.use_codec(codec)
        if self._confined:
            watch(instance_name)
        self._model_file = model_file
        self._instance_name = instance_name
        be_called(instance_name)
        self._runtime = StubRuntime(version_directory, instance_name)
        bind_runtime(self._runtime)
        try:
            if debugger is not None:
                from pybackend_stub.debugger import start_debugger

                start_debugger(debugger[0], debugger[1], _BUNDLE)
            self._model_class = import_model(model_file, of_backend=of_backend)
            completed = None
            if config_json is not None:
                completed = complete_config(self._model_class, model_name, config_json)
        except BaseException as error:  # noqa: BLE001  an import that calls sys.exit() fails the load, nothing else
            return self._fail("load", error)
        self._channel.send([(StubMessage.COMPLETED, completed)])
        return True

    def _initialize(
        self,
        args: "Dict[str, str]",
        output_names: "List[str]",
        copy_inputs: bool,
        decoupled: bool,
        concurrency: int,
        reschedules: bool,
    ) -> bool:
        assert self._model_class is not None
        assert self._runtime is not None
        channel, receiver, memory, name = self._channel, self._receiver, self._memory, self._instance_name
        self._writer = writer = OutputWriter(channel, receiver, memory, name)
        self._calls = calls = HostCalls(channel, receiver, memory)
        self._runtime.metrics = StubMetrics(calls, name)
        self._runtime.control = ModelControl(calls, writer, name)
        ForkRelay(self._on_fork).install()
        try:
            self._model = self._model_class()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(args)
        except BaseException as error:  # noqa: BLE001  as in _load
            return self._fail("initialize", error)
        reader = TensorReader(memory, output_names, copy_inputs)
        results = ResultWriter(writer, name, _format_error)
        self._responder = self._runtime.responder = Responder(channel, receiver, results, decoupled)
        self._executor = ModelExecutor(
            self._model, self._model_file, reader, results, self._answers, decoupled, concurrency, reschedules
        )
        receiver.hands_back = not self._executor.only_begins
        is_ready = getattr(self._model, "is_ready", None)
        if is_ready is not None:
            self._readiness = ReadinessCheck(is_ready, self._executor, self._answer_readiness, _format_error, name)
            self._attendant.start()  # the host may ask while the main thread is busy
        self._runtime.models = ModelCalls(calls, receiver, reader, writer, self._current_execution, self._before_call)
        channel.send([(StubMessage.INITIALIZED, is_ready is not None)])
        return True

    def _on_fork(self) -> None:
        """In a process that the model has forked: host and input memory are not its to speak with, or to give back."""
        self._memory.disown()
        self._channel.disown()

    def _answer_readiness(self, ready: bool, reason: str) -> None:
        with suppress(HostGone):
            self._channel.send([(StubMessage.READINESS, ready, shortened(reason, MOST_TEXT))])

    def _before_call(self) -> None:
        """A model is going to wait for another one: what is over and what is not begun must not wait with it."""
        self._answers.flush()
        self._receiver.return_work()

    def _current_execution(self) -> int:
        """The execution that the calling thread works for, 0 for threads of the model's own."""
        if threading.get_ident() == self._main_thread:
            return self._executing
        coroutines = sys.modules.get("pybackend_stub.coroutines")
        return 0 if coroutines is None else coroutines.current_execution()

    def _fail(self, phase: str, error: BaseException) -> bool:
        failure = Failure(ErrorCode.INTERNAL, shortened(_format_error(error), MOST_TEXT))
        flush_output()  # what the model printed about it; the host does not wait for this process to end
        self._channel.send([(StubMessage.FAILED, phase, failure)])
        return False

    def _execute(self, message: "List[Any]", tail: bytearray) -> None:
        if self._executor is None:
            raise RemoteProtocolError("EXECUTE before INITIALIZE")
        if message[1] >= ATTENDED_FROM or self._receiver.has_more_work:
            self._attendant.start()  # should this last, what was sent ahead goes to another instance
        self._executing = message[1]
        self._memory.mark_begun(message[1])
        ready_ns = self._executor.run(message[1], message[2], tail)
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
            except BaseException as error:  # noqa: BLE001  a model that fails to end is ended all the same
                Logger.log_info(f"Failed to finalize model: {_format_error(error)}")
        self._receiver.end()
        self._channel.send([(StubMessage.FINALIZED,)])
        flush_output()

    def _input_released(self) -> None:
        """Called by the garbage collector, in any thread; while the main thread waits, nobody else would tell the host."""
        if self._receiver.is_idle:
            with suppress(HostGone):  # the main thread is about to read the end of file
                self._return_inputs()

    def _return_inputs(self) -> None:
        released = self._memory.take_released()
        if released:
            self._channel.send([(StubMessage.FREE_INPUT, released)])


def _format_error(error: BaseException) -> str:
    """The error's text with where it happened, without the stub's own frames."""
    note(error)
    return format_exception(error, [_BUNDLE, "<frozen importlib"])
