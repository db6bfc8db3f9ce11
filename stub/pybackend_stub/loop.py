"""The stub's main loop: receive, dispatch, answer. It knows messages; models are the executor's business."""

import os
import sys
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np

from pybackend_sdk.error import format_exception
from pybackend_sdk.logger import Logger
from pybackend_sdk.runtime import bind_runtime
from pybackend_stub.answers import AnswerQueue
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_stub.executor import ModelExecutor, OutputMemoryExhausted
from pybackend_stub.memory import OutputBlock, StubMemory
from pybackend_stub.model_loader import complete_config, import_model
from pybackend_stub.runtime import StubRuntime
from pybackend_stub.tensor_io import OutputWriter, RequestReader
from pybackend_wire.errors import ErrorCode, RemoteProtocolError
from pybackend_wire.messages import Failure, HostMessage, SegmentRole, StubMessage

_BUNDLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class StubLoop:
    """One instance of one model, from HELLO to FINALIZED."""

    def __init__(self, channel: HostChannel, nudges: int) -> None:
        self._channel = channel
        self._memory = StubMemory(self._input_released)
        self._writer = OutputWriter(self._allocate_output, self._memory.free_output)
        self._answers = AnswerQueue(channel, self._writer, nudges)
        self._waiting: Deque[Tuple[List[Any], bytearray]] = deque()
        self._model_class: Optional[type] = None
        self._model: Any = None
        self._model_file = ""
        self._instance_name = ""
        self._executor: Optional[ModelExecutor] = None
        self._begun = 0
        self._idle = False

    def run(self) -> int:
        """Serve until the host says FINALIZE or goes away; returns the exit status."""
        try:
            self._channel.greet(np.__version__)
            while True:
                messages, tail = self._next_frame()
                last = len(messages) - 1
                for index, message in enumerate(messages):
                    if message[0] == HostMessage.EXECUTE:
                        self._execute(message, tail, more=index < last)
                    elif not self._dispatch(message):
                        return 0
                if messages[last][0] != HostMessage.EXECUTE:
                    self._answers.end_of_frame()  # an execution before it has kept its answer for the next one
                del messages, tail
        except HostGone:
            # Nobody is left to serve. A model's threads or exit handlers could keep the process alive.
            os._exit(0)

    def _next_frame(self) -> "Tuple[List[Any], bytearray]":
        if self._waiting:
            return self._waiting.popleft()
        self._idle = True
        self._return_inputs()
        try:
            return self._channel.receive()
        finally:
            self._idle = False

    def _dispatch(self, message: "List[Any]") -> bool:
        """Handle anything but EXECUTE; False ends the stub."""
        kind = message[0]
        if kind == HostMessage.FREE_OUTPUT:
            for segment, offset in message[1]:
                self._memory.free_output(segment, offset)
        elif kind == HostMessage.ATTACH:
            self._memory.attach(message[1], self._channel.descriptors.popleft(), message[2], message[3])
        elif kind == HostMessage.DETACH:
            if self._memory.detach(message[1]):
                self._channel.send([(StubMessage.DETACHED, message[1])])
        elif kind == HostMessage.LOAD:
            return self._load(*message[1:])
        elif kind == HostMessage.INITIALIZE:
            return self._initialize(*message[1:])
        elif kind == HostMessage.FINALIZE:
            self._finalize()
            return False
        elif kind != HostMessage.NO_OUTPUT:
            raise RemoteProtocolError(f"the host sent a message of unknown kind {kind}")
        return True

    def _load(
        self,
        codec: str,
        model_file: str,
        model_name: str,
        instance_name: str,
        version_directory: str,
        config_json: "Optional[str]",
    ) -> bool:
        self._channel.use_codec(codec)
        self._model_file = model_file
        self._instance_name = instance_name
        bind_runtime(StubRuntime(self._channel, version_directory))
        try:
            self._model_class = import_model(model_file)
            completed = None
            if config_json is not None:
                completed = complete_config(self._model_class, model_name, config_json)
        except BaseException as error:  # noqa: BLE001  an import that calls sys.exit() fails the load, nothing else
            return self._fail("load", error)
        self._channel.send([(StubMessage.COMPLETED, completed)])
        return True

    def _initialize(self, args: "Dict[str, str]", output_names: "List[str]", copy_inputs: bool) -> bool:
        assert self._model_class is not None
        try:
            self._model = self._model_class()
            initialize = getattr(self._model, "initialize", None)
            if initialize is not None:
                initialize(args)
        except BaseException as error:  # noqa: BLE001  as in _load
            return self._fail("initialize", error)
        self._executor = ModelExecutor(
            self._model,
            self._instance_name,
            self._model_file,
            RequestReader(self._memory, output_names, copy_inputs),
            self._writer,
            self._answers,
            _format_error,
        )
        self._channel.send([(StubMessage.INITIALIZED,)])
        return True

    def _fail(self, phase: str, error: BaseException) -> bool:
        failure = Failure(ErrorCode.INTERNAL, shortened(_format_error(error), MOST_TEXT))
        sys.stdout.flush()  # what the model printed about it; the host does not wait for this process to end
        self._channel.send([(StubMessage.FAILED, phase, failure)])
        return False

    def _execute(self, message: "List[Any]", tail: bytearray, more: bool) -> None:
        if self._executor is None:
            raise RemoteProtocolError("EXECUTE before INITIALIZE")
        self._begun += 1
        self._memory.mark_begun(self._begun)
        ready_ns = self._executor.run(message[1], tail)
        released = self._memory.take_released()
        if released:
            self._answers.add_released(released)
        if more:
            self._answers.keep_or_flush(ready_ns)
        else:
            self._answers.end_of_frame()

    def _finalize(self) -> None:
        self._answers.flush()
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:  # noqa: BLE001  a model that fails to end is ended all the same
                Logger.log_info(f"Failed to finalize model: {_format_error(error)}")
        self._channel.send([(StubMessage.FINALIZED,)])
        sys.stdout.flush()
        sys.stderr.flush()

    def _allocate_output(self, nbytes: int) -> OutputBlock:
        """A block of output memory; asks the host for more where the segments at hand are full."""
        block = self._memory.allocate_output(nbytes)
        if block is not None:
            return block
        self._channel.send([(StubMessage.NEED_OUTPUT, nbytes)])
        while True:
            messages, tail = self._channel.receive()
            rest: List[Any] = []
            answered = refused = False
            for message in messages:
                if message[0] in (HostMessage.EXECUTE, HostMessage.FINALIZE):
                    rest.append(message)
                    continue
                answered |= message[0] == HostMessage.ATTACH and message[3] == SegmentRole.OUTPUT
                refused |= message[0] == HostMessage.NO_OUTPUT
                self._dispatch(message)
            if rest:
                self._waiting.append((rest, tail))
            if answered or refused:
                block = self._memory.allocate_output(nbytes)
                if block is not None:
                    return block
            if refused:
                raise OutputMemoryExhausted(
                    f"an output of {nbytes} bytes does not fit into the output memory that instance '{self._instance_name}' may use"
                )

    def _input_released(self) -> None:
        """Called by the garbage collector, in any thread; while the main thread waits, nobody else would tell the host."""
        if self._idle:
            with suppress(HostGone):  # the main thread is about to read the end of file
                self._return_inputs()

    def _return_inputs(self) -> None:
        released = self._memory.take_released()
        if released:
            self._channel.send([(StubMessage.FREE_INPUT, released)])


def _format_error(error: BaseException) -> str:
    """The error's text with where it happened, without the stub's own frames."""
    return format_exception(error, [_BUNDLE, "<frozen importlib"])
