"""The sandbox of one version of a model, and of each of its instances' processes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.sandbox.file_rules import ModelPlaces, standard_rules, strict_rules
from pybackend.sandbox.leftovers import end_processes_of
from pybackend.sandbox.limits import resource_limits
from pybackend.sandbox.options import HOST_UID, SandboxOptions
from pybackend.sandbox.reach import obstacle, obstacle_below
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend.sandbox.users import NoUsersError, UserRange
from pybackend.sandbox.verification import contradictions
from pybackend_wire.confinement import LAYERS, OFF, STANDARD, STRICT, Confinement

log = logging.getLogger(__name__)

_NOT_CHANGED = -1

_OOM_SCORE_ADJ = 500
"""Half of all memory: whoever has that more than a model is ended before it."""

_GROUP_MAY, _NOBODY_MAY = 0o007, 0o077
"""Masks for new files. Instances of a model share their group and nothing else."""

_NAMES_OF_USER = ("LOGNAME", "USER", "LNAME", "USERNAME")

_KEPT_AT_STRICT = ("PATH", "LANG", "LANGUAGE", "TZ", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_KEPT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "GOMP_", "KMP_")


@dataclass(frozen=True)
class ModelFiles:
    """What a version consists of.

    Attributes:
        directory: of the model.
        version_directory: of the version.
        model_file: that is imported.
        environment: that it runs in.
        of_backend: the file is that of a Python-based backend.
        gpu: an instance uses a GPU.
        sharing: tells the directories of all models that name this environment as this one does; None if its processes
            are to be forked from nothing that others are forked from.
    """

    directory: Path
    version_directory: Path
    model_file: Path
    environment: Environment
    of_backend: bool = False
    gpu: bool = False
    sharing: Callable[[], Collection[Path]] | None = None

    @property
    def python(self) -> tuple[str, ...]:
        """Directories of the interpreter and of its packages."""
        return python_directories(self.environment)


def sandbox_of(
    sandbox: Sandbox, name: str, options: SandboxOptions, files: ModelFiles, source: str
) -> ModelSandbox | None:
    """The sandbox of a version that is about to be loaded, None if it has none.

    Args:
        sandbox: of the server.
        name: of the model.
        options: from its configuration as it is written: its own code has no say.
        files: of the version.
        source: of the configuration, for messages.

    Raises:
        ModelConfigError: it asks for what it must not have.
    """
    level = sandbox.level_of(name, options, source)
    return None if level == OFF else ModelSandbox(sandbox, name, level, options, files)


class ModelSandbox:
    """What all instances of a version have in common.

    Attributes:
        level: ``standard`` or ``strict``.
        missing: layers that are not in force, and why, as far as processes have reported.
    """

    def __init__(self, sandbox: Sandbox, name: str, level: str, options: SandboxOptions, files: ModelFiles) -> None:
        self._sandbox = sandbox
        self._name = name
        self.level = level
        self._options = options
        self._files = files
        self._group = _NOT_CHANGED
        self._instances: dict[int, InstanceSandbox] = {}
        self.missing: dict[str, str] = {}
        self._uid_obstacle: str | None = None
        self._domain: TrustDomain | None = None
        for path in (*options.read, *options.write):
            if not os.path.exists(path):
                log.warning(
                    "model '%s': SANDBOX_READ or SANDBOX_WRITE names %s, which is not there: it is of use only if it is made "
                    "before the model is loaded",
                    name,
                    path,
                )
        usual_user = options.uid is None and self.has_own_user == (os.geteuid() == 0)
        if level == STANDARD and files.environment.is_foreign and files.sharing is not None and usual_user:
            self._domain = sandbox.domain_of(files.environment)
            self._domain.join(self, files.sharing)

    def of_instance(self, index: int) -> InstanceSandbox:
        """The sandbox of an instance, the same for every process that it will have.

        Raises:
            ModelLoadError: a layer that is required cannot be had.
        """
        if index not in self._instances:
            self._instances[index] = self._make()
        return self._instances[index]

    def prepare(self, count: int) -> None:
        """Make those of so many instances; blocks for a while.

        Raises:
            ModelLoadError: see :meth:`of_instance`.
        """
        for index in range(count):
            self.of_instance(index)

    @property
    def has_own_user(self) -> bool:
        """True if processes are to run as somebody else than the server."""
        return os.geteuid() == 0 and self._options.uid != HOST_UID

    def _make(self) -> InstanceSandbox:
        left_out: dict[str, str] = {}
        uid = gid = _NOT_CHANGED
        scratch = ""
        if self.has_own_user:
            try:
                uid, gid = self._take_user()
            except NoUsersError as error:
                left_out["uid"] = str(error)
        own_user = uid != _NOT_CHANGED
        if not own_user and self.level == STANDARD:
            self._sandbox.make_caches()
        if own_user or self.level == STRICT:
            try:
                maker = self._sandbox.scratch.make if self._domain is None else self._domain.make_scratch
                scratch = maker(uid, gid)
            except OSError as error:
                raise ModelLoadError(
                    f"no private directory can be made for model '{self._name}': {error.strerror or error}",
                    ErrorCode.UNAVAILABLE,
                ) from error
        if self.level == STANDARD and self._sandbox.exposed:
            left_out["neighbours"] = self._sandbox.exposed
        confinement = self._confinement(uid, gid, scratch, left_out)
        if self._domain is not None:
            self._domain.add(self, confinement)
        return InstanceSandbox(self, confinement, self._domain, exclusive=own_user and self._options.uid is None)

    def _take_user(self) -> tuple[int, int]:
        if self._options.uid is not None:
            return self._options.uid, self._options.uid
        users = self._users
        uid = users.take()
        try:
            if self._group == _NOT_CHANGED:
                self._group = users.take()
            if self._uid_obstacle is None:
                self._uid_obstacle = self._obstacle(uid, self._group)
            if self._uid_obstacle:
                raise NoUsersError(self._uid_obstacle)
        except NoUsersError:
            users.give_back(uid)
            raise
        return uid, self._group

    @property
    def _users(self) -> UserRange | TrustDomain:
        return self._sandbox.users if self._domain is None else self._domain

    def _obstacle(self, uid: int, gid: int) -> str:
        files = self._files
        needed = [str(files.environment.python), *files.python, self._sandbox.places.bundle]
        needed += [str(files.directory), str(files.version_directory), str(files.model_file)]
        found = obstacle([path for path in needed if os.path.exists(path)], uid, gid)
        return found or obstacle_below(str(files.version_directory), uid, gid)

    def _confinement(self, uid: int, gid: int, scratch: str, left_out: dict[str, str]) -> Confinement:
        options, strict, own_user = self._options, self.level == STRICT, uid != _NOT_CHANGED
        network = not strict if options.network is None else options.network
        unix_sockets = (network or not strict) if options.unix_sockets is None else options.unix_sockets
        subprocesses = not strict if options.subprocesses is None else options.subprocesses
        places = ModelPlaces(
            directory=str(self._files.directory),
            python=self._files.python,
            backend=str(self._files.model_file.parent) if self._files.of_backend else "",
            scratch=scratch,
            read=options.read,
            write=options.write,
            gpu=self._files.gpu,
            subprocesses=subprocesses,
            network=network,
        )
        server = self._sandbox.places
        as_root = os.geteuid() == 0 and not own_user
        return Confinement(
            level=self.level,
            paths=strict_rules(server, places) if strict else standard_rules(server, places, as_root=as_root),
            limits=resource_limits(self.level, options, own_user=own_user),
            variables=self._variables(scratch, strict=strict),
            left_out=left_out,
            required=self._required(),
            uid=uid,
            gid=gid,
            umask=_NOBODY_MAY if strict else _GROUP_MAY if own_user else _NOT_CHANGED,
            network=network,
            unix_sockets=unix_sockets,
            subprocesses=subprocesses,
            changes_modes=own_user or not strict,
            oom_score_adj=_OOM_SCORE_ADJ,
            scrubbed=strict,
            canary="" if left_out.get("neighbours") else self._sandbox.canary(),
        )

    def _required(self) -> list[str]:
        if not self._sandbox.settings.required:
            return []
        return [layer for layer in LAYERS if layer != "uid" or self.has_own_user]

    def _variables(self, scratch: str, *, strict: bool) -> dict[str, str | None]:
        variables: dict[str, str | None] = {}
        if strict:
            kept = {**os.environ, **self._files.environment.variables}
            own = self._files.environment.variables
            variables.update(
                (name, value)
                for name, value in kept.items()
                if name in own or name in _KEPT_AT_STRICT or name.startswith(_KEPT_PREFIXES)
            )
            variables |= {"USER": "model", "LOGNAME": "model"}
        elif scratch and not any(map(os.environ.get, _NAMES_OF_USER)):
            variables["LOGNAME"] = "model"  # its user has no name, and libraries ask for one
        if scratch:
            variables |= {"HOME": scratch, "TMPDIR": scratch, "XDG_CACHE_HOME": os.path.join(scratch, ".cache")}
        return variables

    def note(self, pid: int, confinement: Confinement, report: Mapping[str, str]) -> None:
        """Hold a process's report against what can be seen of it, and say what is not in force.

        Raises:
            ModelLoadError: the report is not true, or a layer that is required is not in force.
        """
        filters = 2 if self._files.environment.is_foreign else 1
        wrong = contradictions(pid, confinement, report, filters)
        if wrong:
            raise ModelLoadError(f"the process of model '{self._name}' is not confined as it says: {wrong}")
        missing = {layer: report.get(layer, "nothing is known about it") for layer in LAYERS}
        missing = {layer: reason for layer, reason in missing.items() if reason}
        if not self.has_own_user:
            missing.pop("uid", None)
        self.missing = missing
        for layer, reason in missing.items():
            self._sandbox.tell(self._name, layer, reason)

    def summary(self) -> dict[str, object]:
        """Its level, and what is not in force of it, for whoever looks at the model from outside."""
        return {"level": self.level, "not_in_force": dict(self.missing)}

    def end_leftovers(self, confinement: Confinement) -> None:
        """Blocks for a while: end what a process has left behind."""
        end_processes_of(confinement.uid, confinement.gid)

    async def close(self) -> None:
        """The processes are gone: end what they have started, remove what they have written, give back their users."""
        instances, self._instances = list(self._instances.values()), {}
        await asyncio.gather(*(asyncio.to_thread(self._remove, instance) for instance in instances))
        if self._group != _NOT_CHANGED:
            self._users.give_back(self._group)
            self._group = _NOT_CHANGED
        domain, self._domain = self._domain, None
        if domain is not None and domain.leave(self):
            self._sandbox.end_domain(domain)
            await asyncio.to_thread(domain.clean_up)

    def _remove(self, instance: InstanceSandbox) -> None:
        confinement = instance.confinement
        gone = end_processes_of(confinement.uid, confinement.gid) if instance.exclusive else True
        if instance.scratch:
            self._sandbox.scratch.remove(instance.scratch)
        if instance.exclusive and gone:
            self._users.give_back(confinement.uid)


class InstanceSandbox:
    """The sandbox of one instance.

    Attributes:
        confinement: of each of its processes.
        domain: what its processes may be forked in, None if they may not.
        exclusive: nobody else has its user.
    """

    def __init__(
        self, model: ModelSandbox, confinement: Confinement, domain: TrustDomain | None, *, exclusive: bool
    ) -> None:
        self._model = model
        self.confinement = confinement
        self.domain = domain
        self.exclusive = exclusive

    @property
    def scratch(self) -> str:
        """Its private directory, "" for none."""
        return self.confinement.variables.get("TMPDIR") or ""

    def check(self, pid: int, report: Mapping[str, str]) -> None:
        """Look whether a process is confined as it says; see :meth:`ModelSandbox.note`."""
        self._model.note(pid, self.confinement, report)

    async def end_leftovers(self) -> None:
        """End what the process that has just ended has started and left behind."""
        if self.exclusive:
            await asyncio.to_thread(self._model.end_leftovers, self.confinement)


def python_directories(environment: Environment) -> tuple[str, ...]:
    """Where an interpreter and its packages lie: its own directory, and that of the one that a virtual environment uses."""
    python = str(environment.python)
    found = [environment.prefix and str(environment.prefix), os.path.dirname(os.path.dirname(python))]
    found.append(os.path.dirname(os.path.dirname(os.path.realpath(python))))
    if python == sys.executable:
        found += [sys.prefix, sys.base_prefix, sys.exec_prefix, *_search_path()]
    found.append(_home_of_virtual_environment(os.path.dirname(os.path.dirname(python))))
    return tuple(dict.fromkeys(path for path in found if path and path != "/"))


def _search_path() -> list[str]:
    """Where this Python finds packages outside its own directories; models find them too, but not by PYTHONPATH."""
    not_theirs = {"", os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    return [path for path in sys.path if path not in not_theirs and os.path.isdir(path)]


def _home_of_virtual_environment(prefix: str) -> str:
    try:
        lines = Path(prefix, "pyvenv.cfg").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return os.path.dirname(value.strip())
    return ""
