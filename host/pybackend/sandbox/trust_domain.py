"""The models that share a zygote, which runs the code of their environment before it forks any of their processes.

So the zygote is confined too: it may reach what these models may reach together, and each fork is confined to its own
part.
"""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pybackend.gpus import LIBRARIES
from pybackend.sandbox.file_rules import OWN, resolved
from pybackend.sandbox.runtime_directory import PASSED_BY_OTHERS, RuntimeDirectory
from pybackend.sandbox.users import NoUsersError, UserRange, end_processes_of, users_with_processes
from pybackend_wire.confinement import LIBRARY_PATH, Confinement

_ALWAYS = ("uid", "capabilities", "no_new_privileges", "system_calls")
"""Layers without which a process must not keep the privilege of changing its user."""

_NOT_CHANGED = -1

_PLACES_OF_HOME = ("HOME", "XDG_CACHE_HOME")
_OF_HOME = ("PYTHONUSERBASE", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables of a model's home, and others that come with it."""


class TrustDomain:
    """The models that run in one environment and are confined by its files' rules. Used from several threads.

    Args:
        users: source of user ids; None if all processes have the host's user.
        home: returns the home of the model in a directory.
    """

    def __init__(self, users: UserRange | None, scratch: RuntimeDirectory, home: Callable[[str], Path]) -> None:
        self._users = users
        self._home = home
        self._scratch = scratch
        self._block: range | None = None
        self._free: list[int] = []
        self._common_scratch = ""
        self._own_scratch = ""
        self._members: dict[object, _Member] = {}
        self.has_ended = False  # whether nothing must be started for it any more
        self._at_end: list[Callable[[], None]] = []
        self._changing = threading.Lock()

    # Members

    def join(self, member: object, directories: Callable[[], Collection[Path]]) -> None:
        """Add a model that runs in this environment.

        Args:
            directories: returns the directories of all models that name this environment in the same way, loaded or
                not.
        """
        with self._changing:
            self._members[member] = _Member(directories)

    def add(self, member: object, confinement: Confinement) -> None:
        with self._changing:
            self._members[member].confinements.append(confinement)

    def leave(self, member: object) -> bool:
        """Remove a model that has ended; True if it was the last one."""
        with self._changing:
            self._members.pop(member, None)
            return not self._members

    def at_end(self, close: Callable[[], None]) -> None:
        """Register a function that ends something started for this domain."""
        self._at_end.append(close)

    def end(self) -> None:
        """End everything started for this domain, which has no members left; on the loop's thread."""
        self.has_ended = True
        while self._at_end:
            self._at_end.pop()()

    def clean_up(self) -> None:
        """After :meth:`end`, which ended its processes, remove their files and release their users. Blocking."""
        if self._block is not None and self._users is not None:
            alive = [uid for uid in users_with_processes(self._block) if not end_processes_of(uid, uid)]
            if not alive:
                self._users.give_back(*self._block)
        if self._common_scratch:
            self._scratch.remove(Path(self._common_scratch))

    # Resources for its members' processes

    def take(self) -> int:
        """Return a user or group id: one that :attr:`Confinement.users` allows if one is left."""
        assert self._users is not None
        with self._changing:
            if self._block is None:
                try:
                    self._block = self._users.take_block()
                except NoUsersError:
                    self._block = range(0)
                self._free = list(self._block[1:])
            if self._free:
                return self._free.pop(0)
        return self._users.take()

    def give_back(self, number: int) -> None:
        """Take back an id that no process has any more."""
        assert self._users is not None
        with self._changing:
            if self._block is not None and number in self._block:
                self._free.append(number)
                return
        self._users.give_back(number)

    def make_scratch(self, uid: int, gid: int) -> str:
        """Create a private directory that forks can reach."""
        with self._changing:
            if not self._common_scratch:
                self._common_scratch = str(self._scratch.make(PASSED_BY_OTHERS))
        return str(self._scratch.make(owner=(uid, gid), within=Path(self._common_scratch)))

    # The zygote that they are forked from

    def forks(self, confinement: Confinement) -> bool:
        """Whether a zygote of this domain could fork a process with this confinement."""
        if self._users is None:
            return confinement.uid == _NOT_CHANGED
        return bool(self._block) and {confinement.uid, confinement.gid} <= set(self._block or ())

    def expects_more(self) -> bool:
        """Whether models that name this environment are still to come, or lie in another directory than the first."""
        with self._changing:
            members = list(self._members.values())
        return len({path for member in members for path in member.directories()}) > 1

    def confinement(self) -> Confinement:
        """Return the confinement of the members' zygote: it may do whatever any of them may. Blocking.

        Raises LookupError if it has no members any more.
        """
        with self._changing:
            members = list(self._members.values())
        confinements = [one for member in members for one in member.confinements if self.forks(one)]
        if not confinements:
            raise LookupError("none of its models is left")
        first = confinements[0]
        rules: list[Sequence[str]] = [rule for one in confinements for rule in one.paths]
        directories = [path for member in members for path in member.directories()]
        rules += [(str(path), OWN) for path in directories]
        rules += [(str(self._home(str(path))), OWN) for path in directories if path.is_dir()]
        uid = _NOT_CHANGED
        if self._block:
            uid = self._block.start
            if not self._own_scratch:
                self._own_scratch = self.make_scratch(uid, uid)
        if self._common_scratch:
            rules.append((self._common_scratch, OWN))
        return first._replace(
            paths=resolved(rules),
            limits={name: max(one.limits[name] for one in confinements) for name in first.limits},
            variables={**self._variables(first), **_of_the_loader(confinements)},
            offers=(),
            required=tuple({*first.required, *_ALWAYS}) if self._block else first.required,
            uid=uid,
            gid=uid,
            users=len(self._block or ()),
            network=any(one.network for one in confinements),
            unix_sockets=any(one.unix_sockets for one in confinements),
            subprocesses=True,
        )

    def _variables(self, member: Confinement) -> dict[str, str | None]:
        """Variables for the zygote: it has a private directory unless it shares its user with the models."""
        kept = _OF_HOME if self._own_scratch else (*_OF_HOME, *_PLACES_OF_HOME)
        return {name: value if name in kept else self._own_scratch for name, value in member.variables.items()}


def _of_the_loader(confinements: Collection[Confinement]) -> dict[str, str | None]:
    """Variables that the loader reads when a process begins, for all that are forked from it."""
    return next((found for one in confinements if (found := _loader_variables(one))), {})


def _loader_variables(confinement: Confinement) -> dict[str, str | None]:
    return {name: value for name, value in confinement.variables.items() if name in {LIBRARIES, LIBRARY_PATH}}


class _Member:
    def __init__(self, directories: Callable[[], Collection[Path]]) -> None:
        self.directories = directories
        self.confinements: list[Confinement] = []


class Reach:
    """The permissions that a process, confined some time ago, can pass on to its forks.

    File rules apply to what was at their paths at that time: files put there since are out of reach.
    """

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        self._rules = {path: (set(letters), _identity(path)) for path, letters in confinement.paths}

    def covers(self, wanted: Confinement) -> bool:
        """Whether a fork with this confinement would not be confined further by its zygote's. Blocking."""
        had = self._confinement
        return (
            had.network >= wanted.network
            and _loader_variables(wanted).items() <= had.variables.items()
            and had.unix_sockets >= wanted.unix_sockets
            and had.changes_modes >= wanted.changes_modes
            and all(value <= had.limits.get(name, value) for name, value in wanted.limits.items())
            and all(self._reaches(path, set(letters)) for path, letters in wanted.paths)
        )

    def _reaches(self, path: str, letters: set[str]) -> bool:
        if self._has(path, letters):
            return True
        if _identity(path) is None:
            return True  # nothing is there to reach
        return any(self._has(str(parent), letters) for parent in Path(os.path.realpath(path)).parents)

    def _has(self, path: str, letters: set[str]) -> bool:
        given, identity = self._rules.get(path, (set(), None))
        return letters <= given and identity is not None and identity == _identity(path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
