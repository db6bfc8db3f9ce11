"""The stub's main loop: receive, act, answer. It knows messages and leaves the model to the instance."""

import os
import sys
from contextlib import suppress
from typing import Callable, Dict, Optional

import numpy as np

from pybackend_sdk.model_loader import import_model
from pybackend_sdk.runtime import bind_runtime
from pybackend_stub.channel import MOST_TEXT, HostChannel, HostGone, shortened
from pybackend_stub.error_log import (
    BUNDLE,
    ErrorLog,
    explain_refusals,
    keep_sources,
    know_configuration,
    write_load_error,
)
from pybackend_stub.forks import ForkRelay
from pybackend_stub.imports import when_imported
from pybackend_stub.instance import ModelInstance
from pybackend_stub.memory import StubMemory
from pybackend_stub.model_output import flush_output
from pybackend_stub.process import ThreadWatch, be_called
from pybackend_stub.receiver import Attendant, Receiver, Work
from pybackend_stub.runtime import StubRuntime
from pybackend_wire.errors import ErrorCode
from pybackend_wire.host_messages import Initialize, Join, Load, ModelToLoad
from pybackend_wire.messages import Failure
from pybackend_wire.stub_messages import Completed, Failed, Finalized, FreeInput, HandedBack, Initialized

_LAST_SHARED = next(reversed(sys.modules))
"""The name of the module that was imported last when this one was: before any module of a model, and after those in
``PRELOAD``."""

TakeIn = Callable[[int, int], None]
"""Takes a model into this process that speaks to the host through a socket, and has a pipe for nudges."""


class StubLoop:
    """One instance of one model, from HELLO to FINALIZED.

    Args:
        confined: the sandbox's report about this process; None without a sandbox.
        open_group: called if this becomes the process of a group; returns the object that takes its members in.
    """

    def __init__(
        self,
        channel: HostChannel,
        nudges: int,
        confined: "Optional[Dict[str, str]]",
        open_group: "Optional[Callable[[], TakeIn]]" = None,
    ) -> None:
        self._channel = channel
        self._confined = confined
        self._errors = ErrorLog()
        self._memory = StubMemory(self._input_released)
        self._instance = ModelInstance(channel, self._memory, self._errors)
        self._answers = self._instance.answers
        self._receiver = Receiver(
            channel,
            self._instance.handle,
            lambda executions: channel.say(HandedBack(executions)),
        )
        self._open_group = open_group
        self._take_in: Optional[TakeIn] = None
        self._version_directory = ""
        self._import: Callable[..., type] = import_model
        self._execute = self._instance.execute
        self._attendant = attendant = Attendant(nudges, self._receiver)
        attendant.on_nudge = self._answers.flush
        self._receiver.wake_attendant = attendant.wake
        self._instance.connect(self._receiver, attendant.start)

    def run(self) -> int:
        """Serve until the host sends FINALIZE or goes away; returns the exit status."""
        watch = self._watch_thread()
        try:
            return self._serve(watch)
        finally:
            watch.end()

    def _watch_thread(self) -> ThreadWatch:
        watch = ThreadWatch()
        watch.begin()
        return watch

    def _serve(self, watch: ThreadWatch) -> int:
        execute, take_work = self._execute, self._receiver.take_work
        try:
            self._channel.greet(np.__version__, self._confined or {})
            while True:
                message, tail = take_work() or self._next_work()
                if type(message) is list:
                    execute(message[1], message[2], tail)
                elif isinstance(message, Load):
                    if not self._load(message):
                        return 0
                elif isinstance(message, Initialize):
                    if not self._initialize(message):
                        return 0
                elif isinstance(message, Join):
                    self._join(message)
                else:
                    error = self._finalize()
                    self._receiver.is_ended = True
                    watch.end()  # the interpreter may end with the host's next word
                    self._channel.say(Finalized(None if error is None else self._failure(error)))
                    flush_output()
                    return 0
                del message, tail
        except HostGone:
            return self._lose_host()

    def _lose_host(self) -> int:
        # Exit at once: the model's threads or exit handlers could keep the process alive.
        os._exit(0)

    def _join(self, join: Join) -> None:
        """Run another model in this process, which is that of a group."""
        if self._take_in is None:
            assert self._open_group is not None  # members have none, and the host knows them
            be_called(join.process_name)
            self._take_in = self._open_group()
        descriptors = self._channel.descriptors
        self._take_in(descriptors.popleft(), descriptors.popleft())

    def _next_work(self) -> Work:
        """Wait for the next message for this thread, after sending everything that others wait for."""
        self._answers.flush()
        self._return_inputs()
        return self._receiver.next_work()

    def _load(self, load: Load) -> bool:
        self._channel.use_codec(load.codec)
        model = ModelToLoad(*load.model)
        if self._confined is not None:
            explain_refusals(model.instance_name)
        runtime = self._bind(model)
        if model.followed_directory:
            from pybackend_stub.own_writes import tell_own_writes

            tell_own_writes(self._channel, model.followed_directory)
        debugged = model.debugger is not None
        when_imported("pdb", "pybackend_stub.breakpoints", self._instance.terminal, debugged)
        phase = f"cannot import {model.model_file}"
        try:
            if model.debugger is not None:
                from pybackend_stub.debugger import start_debugger

                start_debugger(*model.debugger, BUNDLE)
            self._instance.load(model, runtime, self._import)
            self._version_directory = model.version_directory
            keep_sources(self._version_directory, _LAST_SHARED)
            completed = None
            if load.auto_complete_config is not None:
                phase = "Failed to initialize Python stub for auto-complete"
                completed = self._instance.complete(load.auto_complete_config)
        except BaseException as error:  # noqa: BLE001  an import that calls sys.exit() fails the load, nothing else
            return self._fail("load", phase, error)
        self._channel.say(Completed(completed))
        return True

    def _bind(self, model: ModelToLoad) -> StubRuntime:
        """Serve the model's code in this process."""
        be_called(model.instance_name)
        runtime = StubRuntime(model.version_directory, model.instance_name, model.backend_settings)
        bind_runtime(runtime)
        return runtime

    def _expect_forks(self) -> None:
        ForkRelay(self.on_fork).install()

    def _initialize(self, plan: Initialize) -> bool:
        self._expect_forks()
        know_configuration(plan.args.get("model_config", "{}"))
        try:
            has_is_ready = self._instance.initialize(plan)
            keep_sources(self._version_directory, _LAST_SHARED)
        except BaseException as error:  # noqa: BLE001  as in _load
            return self._fail("initialize", "Failed to initialize Python stub", error)
        self._channel.say(Initialized(has_is_ready))
        return True

    def _finalize(self) -> "Optional[BaseException]":
        return self._instance.finalize()

    def on_fork(self) -> None:
        """In a process that the model forked, give up the host's socket and the parent's input memory."""
        self._memory.disown()
        self._channel.disown()

    def _fail(self, phase: str, what: str, error: BaseException) -> bool:
        write_load_error(what, error)
        failure = self._failure(error)
        flush_output()  # the model's own output about it; the host does not wait for this process to end
        self._channel.say(Failed(phase, failure))
        return False

    def _failure(self, error: BaseException) -> Failure:
        return Failure(ErrorCode.INTERNAL, shortened(self._errors.format(error), MOST_TEXT))

    def _input_released(self) -> None:
        """Called by the garbage collector in any thread; while the main thread waits, no other code tells the host."""
        if self._receiver.is_idle:
            with suppress(HostGone):  # the main thread is about to read the end of file
                self._return_inputs()

    def _return_inputs(self) -> None:
        released = self._memory.take_released()
        if released:
            self._channel.say(FreeInput(released))
