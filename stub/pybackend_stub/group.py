"""The process of a group: several models live in it, each with its own thread and socket.

The main thread runs no model: it takes in new members. A member's thread does what the main thread of any other stub
does. Members come and go one by one; the process ends when the host says so, or with any of them that dies.
"""

import os
import threading
import traceback
from contextlib import suppress
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from pybackend_stub.channel import HostChannel
from pybackend_stub.forks import ForkRelay
from pybackend_stub.loop import StubLoop
from pybackend_stub.model_modules import ModelModules, renew_lock
from pybackend_stub.neighbours import MemberReader, Neighbour, NeighbourCalls, Neighbours
from pybackend_stub.runtime import StubRuntime
from pybackend_stub.runtimes import SharedRuntime, attach, detach, enter
from pybackend_stub.steps import StepRunner
from pybackend_wire.host_messages import FromHost, Initialize, ModelToLoad, Offer, Then
from pybackend_wire.stub_messages import HandedBack, Occupied, encoded

_PATIENCE_S = 0.002
"""How long an execution waits for a model that another one runs, before the host gets it back."""

_CLOSE_S = 1.0
"""How long the coroutines of a member that ends may take to notice it."""


class Group:
    """The members of this process.

    Args:
        confined: the sandbox's report about the process, which each member repeats; None without a sandbox.
    """

    def __init__(self, confined: "Optional[Dict[str, str]]") -> None:
        self._confined = confined
        self._members: List[GroupMember] = []
        self._neighbours = Neighbours()
        self._relay = ForkRelay(self._on_fork)
        self._relay.install()

    def start(self, descriptor: int, nudges: int) -> None:
        """Take in a member that speaks to the host through this socket."""
        threading.Thread(target=self._run, args=(descriptor, nudges), name="pybackend-member", daemon=True).start()

    def _run(self, descriptor: int, nudges: int) -> None:
        try:
            member = GroupMember(HostChannel(descriptor), nudges, self._confined, self._neighbours)
            self._members.append(member)
            try:
                member.run()
            finally:
                self._members.remove(member)
                member.close()
        except BaseException:  # noqa: BLE001  a stub with one model would end, too
            traceback.print_exc()
            os._exit(1)

    def _on_fork(self) -> None:
        renew_lock()
        for member in self._members:
            member.on_fork()


class GroupMember(StubLoop):
    """One model of a group, from HELLO to FINALIZED, in its own thread."""

    def __init__(
        self, channel: HostChannel, nudges: int, confined: "Optional[Dict[str, str]]", neighbours: Neighbours
    ) -> None:
        super().__init__(channel, nudges, confined)
        self._neighbours = neighbours
        self._runtime: Optional[SharedRuntime] = None
        self._neighbour: Optional[Neighbour] = None
        self._then: Dict[int, Tuple[Then, bytearray]] = {}
        self._execute = self._execute_alone
        self._instance.make_reader = MemberReader
        self._instance.make_calls = partial(NeighbourCalls, neighbours, self._answers)
        self._receiver.is_ended = True  # the end of this socket is not that of the process

    def _bind(self, model: ModelToLoad) -> StubRuntime:
        modules = ModelModules(model.model_file, model.of_backend)
        self._import = lambda _file, **_: modules.load()
        self._runtime = runtime = SharedRuntime(
            model.version_directory, model.instance_name, model.backend_settings, modules
        )
        attach(runtime)
        enter(runtime)
        self._neighbour = neighbour = Neighbour(model.model_name, runtime)
        self._instance.on_group_message = self._on_group_message
        self._neighbours.add(neighbour)
        return runtime

    def _initialize(self, plan: Initialize) -> bool:
        if not super()._initialize(plan):
            return False
        instance, neighbour, runtime = self._instance, self._neighbour, self._runtime
        assert instance.executor is not None
        assert instance.results is not None
        assert neighbour is not None
        assert runtime is not None
        if plan.signature is not None and not callable(getattr(instance.model, "is_ready", None)):
            neighbour.open(instance.model, instance.executor, instance.results, plan)
            self._neighbours.number(neighbour)
        assert isinstance(runtime.models, NeighbourCalls)
        runtime.models.reaches_neighbours = plan.calls_neighbours
        return True

    def _on_group_message(self, message: FromHost, tail: bytearray) -> None:
        if isinstance(message, Then):
            self._then[message.execution] = message, tail
        elif isinstance(message, Offer):
            assert self._neighbour is not None  # the model is loaded
            self._neighbour.offer(message.offered)

    def _following(self, execution: int) -> "Optional[StepRunner]":
        then, tail = self._then.pop(execution, (None, bytearray()))
        for number in list(self._then):  # at once: another thread may be adding some
            if number < execution:  # it was handed back
                del self._then[number]
        results, runtime = self._instance.results, self._runtime
        if then is None or results is None or runtime is None or runtime.models is None:
            return None
        assert self._neighbour is not None
        return StepRunner(then, tail, self._neighbour, self._neighbours, runtime.models, self._answers, results)

    def _execute_alone(self, execution: int, requests: "Sequence[Any]", tail: bytearray) -> None:
        assert self._neighbour is not None  # the model is loaded
        busy = self._neighbour.busy
        if not busy.acquire(timeout=_PATIENCE_S):
            returned = self._receiver.withdraw(execution)
            self._channel.send([encoded(Occupied(True)), encoded(HandedBack(returned))])
            with busy:  # wait until it is free
                pass
            self._channel.say(Occupied(False))
            return
        steps = self._following(execution) if self._then else None
        executor = self._instance.executor
        assert executor is not None  # the model is initialised
        executor.steps = steps
        try:
            self._instance.execute(execution, requests, tail)
        finally:
            executor.steps = None
            self._neighbour.has_run = True
            if steps is None or not steps.has_left:
                busy.release()

    def _finalize(self) -> "Optional[BaseException]":
        neighbour = self._neighbour
        if neighbour is not None:
            with neighbour.busy:
                neighbour.close()
        return super()._finalize()

    def _expect_forks(self) -> None:
        """Do nothing: the group expects them."""

    def _lose_host(self) -> int:
        return 0

    def close(self) -> None:
        """The model has ended, or the host has given it up: remove everything that belongs to it."""
        executor, runtime, neighbour = self._instance.executor, self._runtime, self._neighbour
        if neighbour is not None:
            self._neighbours.remove(neighbour)
        if executor is not None:
            executor.close(_CLOSE_S)
        if runtime is not None:
            runtime.modules.close()
            detach(runtime)
        self._attendant.end()
        with suppress(OSError):
            self._channel.close()
