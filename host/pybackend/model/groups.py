"""The groups of models that live in one process: PROCESS_GROUP in their parameters.

Members share an environment, a sandbox and the settings of their Python, so they must agree on all of it. What comes
with a load request never joins: it would run beside what the operator has installed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.errors import ErrorCode, ModelConfigError, ModelLoadError, PybackendError
from pybackend.gpus import NO_GPU, GpuAccess
from pybackend.model.source import ModelSource
from pybackend.modelconfig.model_directory import config_file, subdirectories
from pybackend.modelconfig.options import PROCESS_GROUP, preload_of, process_group_of
from pybackend.modelconfig.parser import parse_config_text, read_config_text
from pybackend.modelconfig.schema import from_document
from pybackend.process.group import GroupProcesses
from pybackend.process.stub_process import StubLaunch
from pybackend.sandbox.model_sandbox import ModelSandbox
from pybackend.sandbox.options import SandboxOptions


@dataclass(frozen=True)
class GroupTerms:
    """The facts that all members of a group share.

    Attributes:
        environment: None for the host's own Python.
        preload: the additional modules of the zygote that forks its processes; None if they are not forked.
        owner: the user to whom the directory of the model belongs.
        gpus: what each instance may use of the GPUs: those with the same number live in one process.
    """

    environment: Environment | None
    preload: tuple[str, ...] | None
    sandbox: SandboxOptions
    owner: int
    gpus: tuple[GpuAccess, ...]

    def contradiction(self, other: GroupTerms) -> str:
        """How another model's terms differ from these, as the end of a sentence about it; empty if they do not."""
        if self.environment != other.environment:
            ours, theirs = (_python(each.environment) for each in (self, other))
            return f"runs on {theirs}, and the others run on {ours}: give all of them the same EXECUTION_ENV_PATH"
        if self.preload != other.preload:
            return "has other ZYGOTE or PRELOAD parameters than the others: give all of them the same"
        if self.sandbox != other.sandbox:
            return "has other SANDBOX parameters than the others: give all of them the same"
        if self.owner != other.owner:
            return f"belongs to user {other.owner}, and the others belong to user {self.owner}: one user must own their directories"
        if any(ours != theirs for ours, theirs in zip(self.gpus, other.gpus, strict=False)):
            return "has instances on other GPUs than the others, or on none: give all of them the same instance_group"
        return ""


def _python(environment: Environment | None) -> str:
    return "the server's own Python" if environment is None else str(environment.python)


class ProcessGroup:
    """The members of one group, their processes, and the sandbox that confines these."""

    def __init__(self, name: str, first: str, terms: GroupTerms) -> None:
        self.name = name
        self.terms = terms
        self.sandbox: ModelSandbox | None = None
        self.directories: frozenset[str] = frozenset()
        self.members: set[object] = set()
        self.opening = asyncio.Lock()
        self.is_open = False
        self._first = first
        self._processes = GroupProcesses(name, self._end_leftovers)

    def check(self, model: str, terms: GroupTerms, source: str) -> None:
        """Check that a model may join. Raises ModelConfigError: it contradicts the other members."""
        contradiction = self.terms.contradiction(terms)
        if contradiction:
            raise ModelConfigError(
                f"model '{model}' cannot join PROCESS_GROUP '{self.name}', which '{self._first}' has opened: it "
                f"{contradiction}, or take PROCESS_GROUP out of this one. If all of them have changed, unload them first "
                f"({source})"
            )
        if len(terms.gpus) > len(self.terms.gpus):
            self.terms = replace(self.terms, gpus=terms.gpus)

    def check_reach(self, model: str, directory: Path) -> None:
        """Check that the processes can reach a model's files.

        Raises ModelLoadError: they were confined without them.
        """
        if self.sandbox is not None and os.path.realpath(directory) not in self.directories:
            raise ModelLoadError(
                f"model '{model}' cannot join PROCESS_GROUP '{self.name}': the group's processes were confined before it came, "
                f"and cannot reach {directory}. Unload the group's models, and load them together with it",
                ErrorCode.UNAVAILABLE,
            )

    def seated(self, launch: StubLaunch, number: int) -> StubLaunch:
        """The launch of an instance in the process with this number."""
        return replace(launch, seat=partial(self._processes.join, number))

    async def _end_leftovers(self, number: int) -> None:
        if self.sandbox is not None:
            gpus = self.terms.gpus
            gpu = gpus[number] if number < len(gpus) else NO_GPU  # more instances came later: never on a GPU
            await self.sandbox.of_instance(number, gpu).end_leftovers()

    async def leave(self, member: object) -> bool:
        """A version has ended; True if it was the last member, and the group is closed."""
        self.members.discard(member)
        if self.members:
            return False
        await self._processes.ended()
        if self.sandbox is not None:
            await self.sandbox.close()
        return True


class ProcessGroups:
    """The groups of a server."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], ProcessGroup] = {}

    def join(self, member: object, source: ModelSource, terms: GroupTerms) -> ProcessGroup:
        """Let a version join its group, which is opened for the first one.

        Raises:
            ModelConfigError: it contradicts the other members.
        """
        name = process_group_of(source.config)
        key = source.namespace, name
        group = self._groups.get(key)
        if group is None or not group.members:
            group = self._groups[key] = ProcessGroup(name, source.full_name, terms)
        group.check(source.full_name, terms, source.config.source)
        group.members.add(member)
        return group


def members_beside(source: ModelSource, repositories: Collection[str], owner: int, config_name: str) -> frozenset[str]:
    """The directories of the models that name a model's group, loaded or not, and belong to the same user. Blocking."""
    name = process_group_of(source.config)
    own = os.path.realpath(source.directory)
    found = {own}
    for repository in {os.path.dirname(own), *repositories}:
        for entry in subdirectories(Path(repository)):
            directory = Path(repository, entry)
            if _names_group(directory, name, config_name) and directory.stat().st_uid == owner:
                found.add(os.path.realpath(directory))
    return frozenset(found)


def _names_group(directory: Path, name: str, config_name: str) -> bool:
    try:
        text = read_config_text(directory, config_file(directory, config_name))
        if PROCESS_GROUP not in text:
            return False
        return process_group_of(from_document(parse_config_text(text, str(directory)), str(directory))) == name
    except PybackendError:  # it is reported when the model is loaded
        return False


def terms_of_group(
    source: ModelSource, environment: Environment | None, options: SandboxOptions, gpus: tuple[GpuAccess, ...]
) -> GroupTerms:
    """The terms under which a version would join its group. Blocking."""
    return GroupTerms(environment, preload_of(source.config), options, os.stat(source.directory).st_uid, gpus)
