"""The sandbox of one version of a model, and of the processes of each instance."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pybackend.environment.environment import Environment
from pybackend.errors import ErrorCode, ModelConfigError, ModelLoadError
from pybackend.gpus import NO_GPU, VISIBLE, GpuAccess
from pybackend.sandbox.caches import Caches, caches_for
from pybackend.sandbox.file_access import Account
from pybackend.sandbox.file_rules import ModelPlaces, contains, resolved, standard_rules, strict_rules
from pybackend.sandbox.grant import Grant
from pybackend.sandbox.homes import Home
from pybackend.sandbox.model_reach import (
    ModelReach,
    Needs,
    ProcessUser,
    check_reach,
    given_user,
    objection_to,
    separate_user,
    server_user,
    warn_of_closed_files,
)
from pybackend.sandbox.new_directories import make_directory
from pybackend.sandbox.options import HOST_UID, SandboxOptions, permissions, resource_limits
from pybackend.sandbox.python_places import PythonPlaces, python_places
from pybackend.sandbox.sandbox import Sandbox
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend.sandbox.users import NoUsersError, UserRange, UsersNotMappedError, end_processes_of
from pybackend.sandbox.verification import contradictions
from pybackend_wire.confinement import LAYERS, OFF, STANDARD, STRICT, TREE, Confinement

log = logging.getLogger(__name__)

_NOT_CHANGED = -1

_BEST_EFFORT = ("uid", "signals", "memory_pressure")
"""Layers that a strict model may lack. "signals": before Linux 6.12 the system call filter and the user replace it.
"memory_pressure": it protects only the server's memory. "uid": it is decided before there is a process."""

_OOM_SCORE_ADJ = 500
"""Half of all memory: a process that uses that much more than a model is killed before it."""

_GROUP_MAY, _NOBODY_MAY = 0o007, 0o077
"""File creation masks. Instances of a model share only their group."""

_PLACES_OF_OPERATOR = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")

_NOBODY = 65534
"""Stands for a user that the server assigns, to whom no file belongs."""

_NAMES_OF_USER = ("LOGNAME", "USER", "LNAME", "USERNAME")

_KEPT_AT_STRICT = ("PATH", "LANG", "LANGUAGE", "TZ", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_KEPT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "GOMP_", "KMP_")


class Seat(NamedTuple):
    """An instance's number among those of its model, and what it may use of the GPUs."""

    number: int
    gpu: GpuAccess = NO_GPU


@dataclass(frozen=True)
class ReachableFiles:
    """The files of a version."""

    directory: Path
    version_directory: Path
    model_file: Path
    environment: Environment
    of_backend: bool = False  # whether the file belongs to a Python-based backend
    # returns the directories of all models that name this environment in the same way; None if its processes must not
    # be forked from a zygote that others use
    sharing: Callable[[], Collection[Path]] | None = None
    beside: tuple[str, ...] = ()  # the directories of other models that live in the same processes
    keeps_home: bool = False  # whether its home at ``standard`` stays when it ends


def sandbox_of(
    sandbox: Sandbox,
    name: str,
    options: SandboxOptions,
    files: ReachableFiles,
    source: str,
    required: Collection[str] = (),
) -> ModelSandbox | None:
    """Make the sandbox of a version that is about to be loaded; None at level ``off``.

    Args:
        options: from its configuration in the repository; the model's code cannot change them.
        required: layers without which it is not loaded, besides those that the operator requires.

    Raises:
        ModelConfigError: the configuration asks for something that it must not have.
    """
    level = sandbox.level_of(name, options, source)
    if level == OFF:
        if os.geteuid() != 0:  # without a sandbox, root keeps its privileges and reaches everything
            python = python_places(files.environment, sandbox.places, files.directory)
            check_reach(name, _reach_of(sandbox, options, files, python), server_user())
        return None
    model = ModelSandbox(sandbox, name, level, options, files, required)
    if level == STRICT and model.objection:
        raise ModelConfigError(f"model '{name}' is not loaded at SANDBOX '{STRICT}': {model.objection} ({source})")
    return model


def _reach_of(sandbox: Sandbox, options: SandboxOptions, files: ReachableFiles, python: PythonPlaces) -> ModelReach:
    return ModelReach(
        Needs(
            directory=files.directory,
            version_directory=files.version_directory,
            model_file=files.model_file,
            python=files.environment.python,
            installations=python.needed,
            packages=[path for path in python.directories if path not in python.needed],
            prefix=files.environment.prefix,
            bundle=sandbox.places.bundle,
            promised=(*options.read, *options.write),
            repositories=sandbox.places.repositories,
            server=(sys.executable, sys.prefix, sys.base_prefix, __file__),
            command=_command(),
            is_unpacked=any(contains(place, str(files.environment.prefix)) for place in sandbox.places.environments),
        )
    )


def _command() -> str:
    """The command ``pybackend`` with its directory: `sudo` does not search the PATH of its caller."""
    command = os.path.join(os.path.dirname(sys.executable), "pybackend")
    return shlex.quote(command) if os.access(command, os.X_OK) else "pybackend"


class ModelSandbox:
    """The sandbox that all instances of a version share.

    Attributes:
        missing: layers that are not in force, with reasons, as far as processes have reported.
        objection: the reason why its environment is unsuitable for an untrusted model; ``""`` if it is suitable.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        level: str,
        options: SandboxOptions,
        files: ReachableFiles,
        required: Collection[str] = (),
    ) -> None:
        self._sandbox = sandbox
        self._needed = frozenset(required)
        self._name = name
        self.level = level
        self._options = options
        self._files = files
        self._group = _NOT_CHANGED
        self._instances: dict[tuple[int, GpuAccess], InstanceSandbox] = {}
        self._confined: Confinement | None = None
        self.missing: dict[str, str] = {}
        places = python_places(files.environment, sandbox.places, files.directory)
        self._python, self.objection = places.directories, places.objection
        self._reach = _reach_of(sandbox, options, files, places)
        self._domain: TrustDomain | None = None
        self._home: Home | None = None
        # the directory of the model that the home belongs to; models in one process share that of the first
        self._home_of = min(map(str, (files.directory, *files.beside)))
        for path in options.write:
            if not os.path.lexists(path):
                _make_directory(name, path, self._likely_account)
        for path in options.read:
            if not os.path.exists(path):
                log.warning(
                    "model '%s': SANDBOX_READ names %s, which does not exist. It has an effect only if the path is created "
                    "before the model is loaded",
                    name,
                    path,
                )
        usual_user = options.uid is None and self.has_own_user == (os.geteuid() == 0)
        if level == STANDARD and files.environment.is_foreign and files.sharing is not None and usual_user:
            self._domain = sandbox.domain_of(files.environment)
            self._domain.join(self, files.sharing)
        self._users: UserRange | TrustDomain = sandbox.users if self._domain is None else self._domain

    def of_instance(self, index: int, gpu: GpuAccess = NO_GPU) -> InstanceSandbox:
        """Return the sandbox of an instance with these GPUs; all its processes share it.

        Raises ModelLoadError if a required layer cannot be applied.
        """
        key = index, gpu
        if key not in self._instances:
            self._instances[key] = self._make(gpu)
        return self._instances[key]

    def prepare(self, seats: Iterable[Seat]) -> None:
        """Make the sandboxes of instances, before processes start in them. Blocking."""
        if self._home is not None:
            with suppress(OSError):  # processes before them may have had other users
                self._sandbox.homes.open_again(self._home)
        for seat in seats:
            self.of_instance(*seat)

    @property
    def has_own_user(self) -> bool:
        """Whether processes should run as another user than the server's."""
        return os.geteuid() == 0 and self._options.uid != HOST_UID

    @property
    def _likely_account(self) -> Account | None:
        """The user of its processes, as far as file permissions can know it beforehand."""
        if not self.has_own_user:
            return server_user().account
        uid = self._options.uid
        return Account(_NOBODY, frozenset()) if uid is None else Account(uid, frozenset({uid}))

    def _make(self, gpu: GpuAccess) -> InstanceSandbox:
        missing: dict[str, str] = {}
        scratch = ""
        user, uid, gid = self._user(missing)
        if not self._instances:  # once per version
            warn_of_closed_files(self._name, self._reach, user, follows_links=self.level == STANDARD)
        own_user = uid != _NOT_CHANGED
        if not own_user and self.level == STANDARD:
            self._sandbox.make_caches()
        home = self._enter_home(gid)
        if own_user or not home:
            try:
                if self._domain is None:
                    scratch = str(self._sandbox.scratch.make(owner=(uid, gid)))
                else:
                    scratch = self._domain.make_scratch(uid, gid)
            except OSError as error:
                raise ModelLoadError(
                    f"cannot create a private directory for model '{self._name}': {error.strerror or error}",
                    ErrorCode.UNAVAILABLE,
                ) from error
        if self.level == STANDARD and self._sandbox.exposed:
            missing["neighbours"] = self._sandbox.exposed
        confinement = self._confinement(uid, gid, scratch, home or scratch, missing, gpu)
        self._confined = confinement
        if self._domain is not None:
            self._domain.add(self, confinement)
        return InstanceSandbox(self, confinement, self._domain, exclusive=own_user and self._options.uid is None)

    def _user(self, missing: dict[str, str]) -> tuple[ProcessUser, int, int]:
        """Return its user with the numbers to change to; it stays the server's if the level allows no other.

        Raises ModelLoadError if no user that it could have reaches its files, or there is none for it.
        """
        unchanged = server_user(), _NOT_CHANGED, _NOT_CHANGED
        if not self.has_own_user:
            check_reach(self._name, self._reach, unchanged[0])
            return unchanged
        try:
            uid, gid = self._take_user()
        except NoUsersError as error:
            if isinstance(error, UsersNotMappedError) and self.level != STRICT:
                check_reach(self._name, self._reach, unchanged[0])
                missing["uid"] = str(error)
                return unchanged
            raise ModelLoadError(
                f"model '{self._name}' cannot have its own user: {error}. Set parameters SANDBOX_UID: \"host\" to let it "
                "run as the server's user",
                ErrorCode.UNAVAILABLE,
            ) from error
        if self._options.uid is not None:
            given = given_user(uid, gid)
            check_reach(self._name, self._reach, given)
            return given, uid, gid
        separate = separate_user(uid, gid)
        try:
            reason = objection_to(separate, self._name, self._reach, self.level)
        except ModelLoadError:
            self._users.give_back(uid)
            raise
        if reason:
            self._users.give_back(uid)
            missing["uid"] = reason
            return unchanged
        return separate, uid, gid

    def _take_user(self) -> tuple[int, int]:
        if self._options.uid is not None:
            return self._options.uid, self._options.uid
        users = self._users
        if self._home is None and self.level == STANDARD and self._files.keeps_home:
            with suppress(OSError):  # the log says so when the home is needed
                self._home = self._sandbox.homes.enter(self._home_of, None, users.take, users.give_back)
        if self._home is not None:
            return users.take(), self._home.gid
        if self._group == _NOT_CHANGED:
            self._group = users.take()
        return users.take(), self._group

    def _enter_home(self, gid: int) -> str:
        """Return the directory that its processes keep as their home; ``""`` for none but their private one."""
        if self.level != STANDARD or not self._files.keeps_home:
            return ""
        if self._home is not None and self._home.gid != gid:
            self._leave_home()
        if self._home is None:
            try:
                self._home = self._sandbox.homes.enter(self._home_of, gid, self._users.take, self._users.give_back)
            except OSError as error:
                self._sandbox.tell_of_home(self._name, error)
                return ""
        return str(self._home.path)

    def _leave_home(self) -> None:
        home, self._home = self._home, None
        if home is not None:
            self._sandbox.homes.leave(home)

    def _confinement(
        self, uid: int, gid: int, scratch: str, home: str, missing: dict[str, str], gpu: GpuAccess
    ) -> Confinement:
        options, strict, own_user = self._options, self.level == STRICT, uid != _NOT_CHANGED
        may = permissions(self.level, options, unix_sockets=self._sandbox.settings.unix_sockets)
        caches = self._caches(uid, gid, home)
        offers = caches.offers
        places = ModelPlaces(
            directory=str(self._files.directory),
            python=self._python,
            backend=str(self._files.model_file.parent) if self._files.of_backend else "",
            scratch=scratch,
            beside=self._files.beside,
            read=options.read,
            write=options.write,
            home=home,
            shared=tuple(outside for outside, _, kind in offers if kind == TREE),
            gpu=gpu,
            subprocesses=may.subprocesses,
            network=may.network,
        )
        server = self._sandbox.places
        as_root = os.geteuid() == 0 and not own_user
        return Confinement(
            level=self.level,
            paths=resolved(strict_rules(server, places) if strict else standard_rules(server, places, as_root=as_root)),
            limits=resource_limits(self.level, options, own_user=own_user),
            variables=self._variables(scratch, home, caches.refused, gpu, strict=strict),
            offers=offers,
            missing=missing,
            required=self._required(own_user=own_user),
            uid=uid,
            gid=gid,
            umask=_NOBODY_MAY if strict else _GROUP_MAY if own_user else _NOT_CHANGED,
            network=may.network,
            unix_sockets=may.unix_sockets,
            subprocesses=may.subprocesses,
            changes_modes=own_user or not strict,
            oom_score_adj=_OOM_SCORE_ADJ,
            scrubbed=strict,
            canary="" if missing.get("neighbours") else self._sandbox.canary(),
        )

    def _required(self, *, own_user: bool) -> list[str]:
        """Return the layers without which its processes must not continue."""
        if self._sandbox.settings.required:
            required = {layer for layer in LAYERS if layer != "uid" or self.has_own_user}
        elif self.level == STRICT:
            required = {layer for layer in LAYERS if layer not in _BEST_EFFORT or (layer == "uid" and own_user)}
        else:
            required = set()
        return [layer for layer in LAYERS if layer in required or layer in self._needed]

    def _caches(self, uid: int, gid: int, home: str) -> Caches:
        """Find the operator's caches that it reaches."""
        if self.level == STRICT or not home:
            return Caches()
        shares_user = uid == _NOT_CHANGED
        account = server_user().account if shares_user else Account(uid, frozenset({gid}))
        caches = caches_for(self._sandbox.places.home, home, account, shares_user=shares_user)
        for place in caches.closed:
            self._sandbox.tell_of_downloads(place.path)
        return caches

    def _variables(
        self, scratch: str, home: str, refused: Collection[str], gpu: GpuAccess, *, strict: bool
    ) -> dict[str, str | None]:
        variables: dict[str, str | None] = {}
        inherited = {**os.environ, **self._files.environment.variables}
        if strict:
            own = self._files.environment.variables
            variables.update(
                (name, value)
                for name, value in inherited.items()
                if name in own or name in _KEPT_AT_STRICT or name.startswith(_KEPT_PREFIXES)
            )
            variables |= {"USER": "model", "LOGNAME": "model"}
        elif scratch and not any(map(os.environ.get, _NAMES_OF_USER)):
            variables["LOGNAME"] = "model"  # its user has no name, and libraries need one
        if scratch:
            variables["TMPDIR"] = scratch
        if home:
            variables |= {"HOME": home, "XDG_CACHE_HOME": os.path.join(home, ".cache")}
        if home and not strict:
            variables |= dict.fromkeys((*refused, *_PLACES_OF_OPERATOR))
            operators = self._sandbox.places.home
            has_user_site = operators and not self._files.environment.is_foreign
            if has_user_site and not os.environ.get("PYTHONUSERBASE"):  # its packages stay importable
                variables["PYTHONUSERBASE"] = os.path.join(operators, ".local")
        variables.update(gpu.variables(variables if strict else inherited))
        variables.setdefault(VISIBLE, inherited.get(VISIBLE))  # a zygote's own value must not stay
        return variables

    def note(self, pid: int, confinement: Confinement, report: Mapping[str, str], *, is_entered: bool) -> None:
        """Check a report about a process against the kernel's view of it, and log the layers that are not in force.

        Args:
            is_entered: True if the host's own Python confined the process before starting another program; False if the
                process confined itself.

        Raises:
            ModelLoadError: the report is not true, or a required layer is not in force.
        """
        # A process that was forked from an environment's zygote has the zygote's filter too.
        filters = 2 if self._files.environment.is_foreign and not is_entered else 1
        wrong = contradictions(pid, confinement, report, filters)
        if wrong:
            raise ModelLoadError(f"the process of model '{self._name}' is not confined as it reports: {wrong}")
        missing = {layer: report.get(layer, "it was not reported") for layer in LAYERS}
        missing = {layer: reason for layer, reason in missing.items() if reason}
        if not self.has_own_user:
            missing.pop("uid", None)
        needed = [f"{layer}: {reason}" for layer, reason in missing.items() if layer in confinement.required]
        if needed:
            raise ModelLoadError(
                f"the process of model '{self._name}' lacks required layers of its sandbox: {'; '.join(needed)}"
            )
        self.missing = missing
        self._sandbox.tell(f"model '{self._name}'", missing)

    @property
    def last_grant(self) -> Grant | None:
        """The bound for models that its processes loaded, even if they have ended; None if there were none."""
        return None if self._confined is None else self.grant(self._confined)

    def grant(self, confinement: Confinement) -> Grant:
        """Return the bound for models that one of its processes loads."""
        options = self._options
        control = options.model_control
        if control is None and self.level == STRICT:
            control = ()
        own_user = confinement.uid >= 0
        return Grant(
            model=self._name,
            level=self.level,
            network=confinement.network,
            unix_sockets=confinement.unix_sockets,
            subprocesses=confinement.subprocesses,
            limits=dict(confinement.limits),
            uid=options.uid,
            control=control,
            overrides=self._sandbox.settings.overrides,
            user=(confinement.uid, confinement.gid),
            rules=confinement.paths,
            in_force=[layer for layer in LAYERS if layer not in self.missing and (layer != "uid" or own_user)],
        )

    def summary(self) -> dict[str, object]:
        """Return its level and the layers that are not in force, for reports about the model."""
        return {"level": self.level, "not_in_force": dict(self.missing)}

    async def close(self) -> None:
        """Clean up once the processes are gone: kill leftovers, remove files, release users."""
        instances, self._instances = list(self._instances.values()), {}
        await asyncio.gather(*(asyncio.to_thread(self._remove, instance) for instance in instances))
        await asyncio.to_thread(self._leave_home)
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
            self._sandbox.scratch.remove(Path(instance.scratch))
        if instance.exclusive and gone:
            self._users.give_back(confinement.uid)


def _make_directory(model: str, path: str, account: Account | None) -> None:
    """Create a directory that a model may write: a confined process cannot.

    Everybody who may write beside it may do so in it.
    """
    try:
        make_directory(path, account)
    except OSError as error:
        log.warning(
            "model '%s': SANDBOX_WRITE names %s, which does not exist and cannot be created: %s. Create it before the model "
            "is loaded",
            model,
            path,
            error.strerror,
        )
    else:
        log.info("Created the directory %s, which SANDBOX_WRITE of model '%s' names.", path, model)


@dataclass(frozen=True, eq=False, repr=False)
class InstanceSandbox:
    """The sandbox of one instance, which confines each of its processes."""

    model: ModelSandbox
    confinement: Confinement
    domain: TrustDomain | None  # the trust domain whose zygote may fork its processes, None if they must not be forked
    exclusive: bool  # whether no other instance has its user

    @property
    def scratch(self) -> str:
        """Its private directory, "" for none."""
        return self.confinement.variables.get("TMPDIR") or ""

    @property
    def grant(self) -> Grant:
        return self.model.grant(self.confinement)

    def check(self, pid: int, report: Mapping[str, str], *, is_entered: bool) -> None:
        """Check that a process is confined as reported; see :meth:`ModelSandbox.note`."""
        self.model.note(pid, self.confinement, report, is_entered=is_entered)

    async def end_leftovers(self) -> None:
        if self.exclusive:
            await asyncio.to_thread(end_processes_of, self.confinement.uid, self.confinement.gid)
