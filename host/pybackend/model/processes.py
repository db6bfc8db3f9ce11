"""The processes of one version: their environment, their sandbox, and their instances."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pybackend.apart import apart, begin_apart
from pybackend.environment.environment import HOST_ENVIRONMENT
from pybackend.environment.provider import EnvironmentProvider, ModelEnvironment
from pybackend.errors import ErrorCode, ModelConfigError, ModelEnvironmentError, ModelLoadError, PybackendError
from pybackend.gpus import NO_GPU, GpuAccess
from pybackend.instance.executor import InstanceExecutor
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.settings import StubSettings
from pybackend.model.groups import GroupTerms, ProcessGroup, members_beside, terms_of_group
from pybackend.model.host import ModelHost
from pybackend.model.source import ModelSource
from pybackend.modelconfig.options import preload_of, sandbox_options_of
from pybackend.modelconfig.schema import InstanceSpec, full_name
from pybackend.observability.repeated_failures import RepeatedFailures
from pybackend.process.start import process_variables
from pybackend.process.stub_process import StubLaunch
from pybackend.sandbox.model_sandbox import ModelSandbox, ReachableFiles, Seat, sandbox_of
from pybackend.sandbox.sandbox import Sandbox
from pybackend_wire.host_messages import DebuggerPoint, ModelToLoad

log = logging.getLogger(__name__)


async def open_sandbox(
    source: ModelSource,
    host: ModelHost,
    environment: ModelEnvironment | None,
    planned: Sequence[InstanceSpec],
    beside: Collection[str] = (),
) -> ModelSandbox | None:
    """Open the sandbox of a version, ready for its first instance; None if the version is not confined.

    ``beside`` are the directories of models that live in the same process.
    """
    # Uses the configuration as written on disk: changes by the model's own code are not trusted.
    options = sandbox_options_of(source.config, source.directory)
    if host.sandbox is None:
        return None
    if source.namespace and options.model_control is not None:
        in_own = [full_name(source.namespace, name) for name in options.model_control]
        options = replace(options, model_control=(*options.model_control, *in_own))
    usual, own = host.sandbox.settings.level, source.directory if source.is_brought else None
    for bound in source.bounds:
        options = await asyncio.to_thread(bound.bounded, source.full_name, options, usual, own, source.config.source)
    required = {layer for bound in source.bounds for layer in bound.in_force}
    path, shares = source.environment_path, preload_of(source.config) is not None
    sharing = partial(host.environments.uses.directories, path) if path is not None and shares else None
    files = ReachableFiles(
        directory=source.directory,
        version_directory=source.version_directory,
        model_file=source.model_file,
        environment=HOST_ENVIRONMENT if environment is None else environment.environment,
        of_backend=source.backend_file is not None,
        sharing=sharing,
        beside=tuple(sorted(beside)),
        keeps_home=not source.is_brought,
    )
    sandbox = sandbox_of(host.sandbox, source.full_name, options, files, source.config.source, required)
    if sandbox is not None:
        try:
            await asyncio.to_thread(sandbox.prepare, [Seat(0, gpu_accesses(host, planned)[0])])
        except ModelLoadError:
            await sandbox.close()
            raise
    return sandbox


def gpu_accesses(host: ModelHost, planned: Sequence[InstanceSpec]) -> list[GpuAccess]:
    """The GPUs of each instance. If none is planned, one for the process that completes the configuration."""
    return [host.gpus.access(spec.kind, spec.device_id) for spec in planned] or [NO_GPU]


async def join_group(
    member: object,
    source: ModelSource,
    host: ModelHost,
    environment: ModelEnvironment | None,
    planned: Sequence[InstanceSpec],
) -> ProcessGroup:
    """Join the group that a version names; the first member opens it, with a sandbox for all that name it.

    Raises:
        ModelLoadError: the version contradicts the other members, or the group's processes cannot reach its files.
    """
    options = sandbox_options_of(source.config, source.directory)
    if host.sandbox is not None:
        level = host.sandbox.level_of(source.full_name, options, source.config.source)
        host.sandbox.check_group(source.full_name, level, source.config.source)
    python = None if environment is None else environment.environment
    gpus = tuple(gpu_accesses(host, planned))
    terms = await asyncio.to_thread(terms_of_group, source, python, options, gpus)
    group = host.groups.join(member, source, terms)
    try:
        async with group.opening:
            if not group.is_open and host.sandbox is not None:
                group.directories = await _member_directories(group, source, host, host.sandbox)
                group.sandbox = await open_sandbox(source, host, environment, planned, group.directories)
            group.is_open = True
        group.check_reach(source.full_name, source.directory)
        if group.sandbox is not None and planned:
            await asyncio.to_thread(group.sandbox.prepare, [Seat(*each) for each in enumerate(gpus)])
    except BaseException:
        await group.leave(member)
        raise
    return group


async def _member_directories(
    group: ProcessGroup, source: ModelSource, host: ModelHost, sandbox: Sandbox
) -> frozenset[str]:
    """The directories that the group's processes must reach: those of models that are to come, too."""
    repositories = () if source.namespace else sandbox.places.repositories
    what = f"the members of PROCESS_GROUP '{group.name}'"
    return await apart(what, members_beside, source, repositories, group.terms.owner, host.settings.config_name)


_CLEARING_S = 5.0
"""Time limit for removing a partly unpacked environment."""


async def open_environment(provider: EnvironmentProvider, path: Path) -> ModelEnvironment:
    """Open an environment; it is kept until it is released."""
    cancelled = threading.Event()
    opening = await begin_apart(provider.open, path, cancelled)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        cancelled.set()
        opening.add_done_callback(_discard)
        await asyncio.wait({opening}, timeout=_CLEARING_S)  # its thread does not keep the process from ending
        raise
    except ModelLoadError:
        raise
    except PybackendError as error:  # package installers raise other errors
        raise ModelEnvironmentError(str(error)) from error


def _discard(opening: asyncio.Future[ModelEnvironment]) -> None:
    """Nobody waits any more: release the environment, or ignore the failure."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().release()


_BUSY_CHECK_S = 0.05
"""How often an instance that is leaving is asked whether it is still busy. Counting would cost every request."""


_members = count(1)

MakeInstance = Callable[[str, RepeatedFailures], ModelInstance]
"""Makes an instance of a version, without a process yet, by its full name."""


class ModelProcesses:
    """The process resources of a version; :meth:`stop` and :meth:`close` release all.

    Where nobody makes instances, none can be started.

    Attributes:
        instances: in configured order, without those that are leaving.
        sandbox: confines the processes, None for no confinement. It remains after they have ended, because it records
            their permissions.
        group: of the models that live in the same processes; None if no other does.
        member: the version's number, by which others in its processes know it.
    """

    def __init__(self, source: ModelSource, host: ModelHost, make: MakeInstance | None) -> None:
        self.instances: list[ModelInstance] = []
        self.member = next(_members)
        self.sandbox: ModelSandbox | None = None
        self._seats: dict[ModelInstance, Seat] = {}
        self._leaving: dict[ModelInstance, asyncio.Task[None]] = {}
        self._source = source
        self._host = host
        self._make = make
        self._environment: ModelEnvironment | None = None
        self.group: ProcessGroup | None = None
        self._debugger_points: list[DebuggerPoint] = []
        self._failures = RepeatedFailures()
        self._callers: set[Any] = set()
        caller = host.caller
        self._program = caller if caller is not None and caller.has(source.directory) else None

    async def open(self, planned: Sequence[InstanceSpec], names: Sequence[str]) -> None:
        """Prepare the resources that the processes of these instances need.

        Names are given even if none are planned.
        """
        source, host = self._source, self._host
        if source.environment_path is not None:
            self._environment = await open_environment(host.environments, source.environment_path)
            log.info("model '%s' runs on %s", source.full_name, self._environment.interpreter.describe())
        if host.debugger.debugs(source.name) or host.debugger.debugs(source.full_name):
            self._debugger_points = host.debugger.reserve(names)
        if self._program is not None:
            return  # threads of that program, which cannot be confined
        if source.joins_group and self._may_join:
            self.group = await join_group(self, source, host, self._environment, planned)
            self.sandbox = self.group.sandbox
        else:
            self.sandbox = await open_sandbox(source, host, self._environment, planned)

    @property
    def _may_join(self) -> bool:
        return not self.is_debugged and self._host.terminal is None and self._make is not None

    def could_share(self, others: ModelProcesses) -> bool:
        """Whether two versions could live in the same processes, and do not. Blocking."""
        if self.group is not None and self.group is others.group:
            return False
        ours, theirs = self._group_terms(), others._group_terms()
        return ours is not None and theirs is not None and not ours.contradiction(theirs)

    def _group_terms(self) -> GroupTerms | None:
        """The terms under which the version would join a group; None if it never does. Blocking."""
        source, host = self._source, self._host
        if not (source.may_join_group and self._may_join) or self._program is not None or host.resources is not None:
            return None
        options = sandbox_options_of(source.config, source.directory)
        if host.sandbox is not None:
            level = host.sandbox.level_of(source.full_name, options, source.config.source)
            try:
                host.sandbox.check_group(source.full_name, level, source.config.source)
            except ModelConfigError:
                return None
        python = None if self._environment is None else self._environment.environment
        return terms_of_group(source, python, options, tuple(seat.gpu for seat in self._seats.values()))

    def make_instance(self, planned: InstanceSpec | str) -> ModelInstance:
        """Make an instance, without a process yet, which is not among :attr:`instances`.

        Of one that is not planned, by name.
        """
        host = self._host
        assert self._make is not None
        name, gpu = (planned, NO_GPU) if isinstance(planned, str) else (planned.name, gpu_accesses(host, [planned])[0])
        name = full_name(self._source.namespace, name)
        instance = self._make(name, self._failures)
        instance.output.about = {"model": self._source.name, "version": str(self._source.version)}
        taken = {seat.number for seat in self._seats.values()}
        self._seats[instance] = Seat(next(number for number in range(len(taken) + 1) if number not in taken), gpu)
        return instance

    async def prepare(self) -> None:
        """Make the sandboxes of all instances."""
        if self.sandbox is not None:
            await asyncio.to_thread(self.sandbox.prepare, list(self._seats.values()))

    def stub_settings(self, instance: ModelInstance, policy_name: str) -> StubSettings:
        """The launch settings and load message for an instance's process; its host policy selects its CPU cores."""
        seat = self._seats[instance]
        source, host = self._source, self._host
        environment = None if self._environment is None else self._environment.environment
        launch = StubLaunch(
            environment=environment,
            cores=host.settings.host_policies.get(policy_name, frozenset()),
            preload=preload_of(source.config),
            sandbox=None if self.sandbox is None else self.sandbox.of_instance(*seat),
            variables=seat.gpu.variables(process_variables(environment or HOST_ENVIRONMENT)),
        )
        if self.group is not None:
            launch = self.group.seated(launch, seat.number)
        elif self._program is not None:
            launch = replace(
                launch, seat=partial(self._program.run, source.name, seat.number), loss=ErrorCode.UNAVAILABLE
            )
        model = ModelToLoad(
            model_file=str(source.model_file),
            model_name=source.name,
            instance_name=instance.name,
            version_directory=str(source.version_directory),
            of_backend=source.backend_file is not None,
            backend_settings=host.backends.settings_of(source.config.backend),
            debugger=self._debugger_points[seat.number] if self.is_debugged else None,
            followed_directory="" if host.settings.looks_every_s is None else str(source.directory),
        )
        return StubSettings(
            launch,
            model,
            host.settings.memory_limit_bytes,
            source.namespace,
            host.disconnect_slow_clients,
            host.tensor_budget,
            self._callers,
            host.terminal,
            partial(host.own_files.note, source.directory),
        )

    def offer(self, *, offered: bool) -> None:
        """Say whether models in the same processes may run this one."""
        if self.group is not None:
            for instance in self.instances:
                instance.offer(offered=offered)

    async def replace_instances(
        self, instances: Sequence[ModelInstance], keeps: Callable[[InstanceExecutor], bool]
    ) -> None:
        """Serve with other instances from now on.

        Those left out have ended when this returns, or soon: the exit limit holds.

        An instance ends after the requests that are still to come and can run only there: ``keeps`` tells of them.
        Nobody waits for such a one.
        """
        leaving = [instance for instance in self.instances if instance not in instances]
        self.instances[:] = instances
        ends = []
        for instance in leaving:
            is_kept = keeps(instance.executor)
            end = self._leaving[instance] = asyncio.create_task(self._end_when_idle(instance, keeps))
            if not is_kept:
                ends.append(end)
        if ends:
            await asyncio.wait(ends, timeout=self._host.settings.exit_timeout_s)

    def succeed(
        self, instance: ModelInstance, successor: ModelInstance, keeps: Callable[[InstanceExecutor], bool]
    ) -> None:
        """Serve with another instance in place of one, which ends likewise. Nobody waits for it."""
        self.instances[self.instances.index(instance)] = successor
        self._leaving[instance] = asyncio.create_task(self._end_when_idle(instance, keeps))

    @property
    def leaving(self) -> Collection[ModelInstance]:
        """The instances that accept no new requests, and have not ended yet."""
        return self._leaving.keys()

    @property
    def can_renew(self) -> bool:
        """False if they must stay what they are: somebody debugs them, or they are not the server's."""
        return self._program is None and not self.is_debugged

    async def drop(self, instances: Sequence[ModelInstance]) -> None:
        """End instances that were made and never added; those that were initialised are finalized."""
        await asyncio.gather(*(instance.stop(self._host.settings.exit_timeout_s) for instance in instances))
        for instance in instances:
            del self._seats[instance]

    async def _end_when_idle(self, instance: ModelInstance, keeps: Callable[[InstanceExecutor], bool]) -> None:
        while instance.is_busy or keeps(instance.executor):  # noqa: ASYNC110  see the constant
            await asyncio.sleep(_BUSY_CHECK_S)
        await instance.stop(self._host.settings.exit_timeout_s)
        del self._leaving[instance], self._seats[instance]

    async def stop(self, finalize_timeout_s: float | None) -> bool:
        """Finalize all instances and end their processes; False if one had to be killed after the timeout."""
        leaving = dict(self._leaving)
        for task in leaving.values():
            task.cancel()
        await asyncio.gather(*leaving.values(), return_exceptions=True)
        stopping = [*self.instances, *self._leaving]
        return all(await asyncio.gather(*(instance.stop(finalize_timeout_s) for instance in stopping)))

    async def close(self) -> None:
        """Release the processes' resources after all of them have ended."""
        self.instances.clear()
        self._seats.clear()
        self._leaving.clear()
        self._failures.close()
        self._host.debugger.give_back(self._debugger_points)
        self._debugger_points = []
        if self.group is not None:
            await self.group.leave(self)
        elif self.sandbox is not None:
            await self.sandbox.close()
        if self._environment is not None:
            self._environment.release()
            self._environment = None

    @property
    def is_debugged(self) -> bool:
        """True if the processes run under a debugger, where time limits would end them."""
        return bool(self._debugger_points)

    @property
    def environment(self) -> Mapping[str, Any] | None:
        """Metadata about the environment's Python; None if the processes run on the host's Python."""
        return None if self._environment is None else self._environment.facts()
