"""What models share whose processes are forked from one: that one runs the code of their environment before it is any of them.

So it is confined too, to what they may reach together, and each of its forks to what is its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pybackend.sandbox.file_rules import OWN, Rules
from pybackend.sandbox.leftovers import end_processes_of, users_with_processes
from pybackend.sandbox.scratch import ScratchRoom
from pybackend.sandbox.users import NoUsersError, UserRange
from pybackend_wire.confinement import Confinement

_ALWAYS = ("uid", "capabilities", "no_new_privileges", "system_calls")
"""Layers without which nothing may keep the privilege of changing its user."""

_NOT_CHANGED = -1


class TrustDomain:
    """The models that run in one environment and are confined by its files' rules. Used from several threads.

    Args:
        users: where numbers for users come from; None where all processes are the host's user.
        scratch: where private directories are made.

    Attributes:
        has_ended: nothing is to be started for it any more.
    """

    def __init__(self, users: UserRange | None, scratch: ScratchRoom) -> None:
        self._users = users
        self._scratch = scratch
        self._block: range | None = None
        self._free: list[int] = []
        self._room = ""
        self._own_scratch = ""
        self._members: dict[object, _Member] = {}
        self.has_ended = False
        self._at_end: list[Callable[[], None]] = []
        self._changing = threading.Lock()

    # Members

    def join(self, member: object, directories: Callable[[], Collection[Path]]) -> None:
        """A model runs in this environment.

        Args:
            member: the model.
            directories: those of all models that name this environment as it does, loaded or not.
        """
        with self._changing:
            self._members[member] = _Member(directories)

    def add(self, member: object, confinement: Confinement) -> None:
        """A process of a member is to be confined so."""
        with self._changing:
            self._members[member].confinements.append(confinement)

    def leave(self, member: object) -> bool:
        """A model has ended; True if it was the last one."""
        with self._changing:
            self._members.pop(member, None)
            return not self._members

    def at_end(self, close: Callable[[], None]) -> None:
        """Something has been started for this domain, and is to be ended with it."""
        self._at_end.append(close)

    def end(self) -> None:
        """Nobody is left: end what was started; on the loop's thread."""
        self.has_ended = True
        while self._at_end:
            self._at_end.pop()()

    def clean_up(self) -> None:
        """After :meth:`end`, which has ended its processes: remove their files, give back their users. Blocking."""
        if self._block is not None and self._users is not None:
            alive = [uid for uid in users_with_processes(self._block) if not end_processes_of(uid, uid)]
            if not alive:
                self._users.give_back(*self._block)
        if self._room:
            self._scratch.remove(self._room)

    # What its members' processes need

    def take(self) -> int:
        """The number of a user or group: one that :attr:`Confinement.users` allows if there is one left.

        Raises:
            NoUsersError: there is none at all.
        """
        assert self._users is not None
        with self._changing:
            if self._block is None:
                self._open(self._users)
            if self._free:
                return self._free.pop(0)
        return self._users.take()

    def give_back(self, number: int) -> None:
        """No process has this number any more."""
        assert self._users is not None
        with self._changing:
            if self._block is not None and number in self._block:
                self._free.append(number)
                return
        self._users.give_back(number)

    def make_scratch(self, uid: int, gid: int) -> str:
        """A private directory, which forks can reach.

        Raises:
            OSError: there is nowhere to make one.
        """
        with self._changing:
            if not self._room:
                self._room = self._scratch.make_common()
        return self._scratch.make(uid, gid, self._room)

    def _open(self, users: UserRange) -> None:
        try:
            self._block = users.take_block()
        except NoUsersError:
            self._block = range(0)
        self._free = list(self._block[1:])

    # What they are forked from

    def forks(self, confinement: Confinement) -> bool:
        """True if something in this domain could become a process that is confined so."""
        if self._users is None:
            return confinement.uid == _NOT_CHANGED
        return bool(self._block) and {confinement.uid, confinement.gid} <= set(self._block or ())

    def expects_more(self) -> bool:
        """True if models name this environment that have not come yet, or others than the first have."""
        with self._changing:
            members = list(self._members.values())
        return len({path for member in members for path in member.directories()}) > 1

    def confinement(self) -> Confinement:
        """Of what the members' processes are forked from: what one of them may do it may do. Blocking.

        Raises:
            OSError: it has nowhere for its own files.
            LookupError: it has no members any more.
        """
        with self._changing:
            members = list(self._members.values())
        confinements = [one for member in members for one in member.confinements if self.forks(one)]
        if not confinements:
            raise LookupError("there is no model left that it could be for")
        first = confinements[0]
        rules: list[Sequence[str]] = [rule for one in confinements for rule in one.paths]
        rules += [(str(path), OWN) for member in members for path in member.directories()]
        uid = _NOT_CHANGED
        if self._block:
            uid = self._block.start
            if not self._own_scratch:
                self._own_scratch = self.make_scratch(uid, uid)
        if self._room:
            rules.append((self._room, OWN))
        return first._replace(
            paths=_joined(rules),
            limits={name: max(one.limits[name] for one in confinements) for name in first.limits},
            variables=dict.fromkeys(first.variables, self._own_scratch),
            required=tuple({*first.required, *_ALWAYS}) if self._block else first.required,
            uid=uid,
            gid=uid,
            users=len(self._block or ()),
            network=any(one.network for one in confinements),
            unix_sockets=any(one.unix_sockets for one in confinements),
            subprocesses=True,
        )


class _Member:
    def __init__(self, directories: Callable[[], Collection[Path]]) -> None:
        self.directories = directories
        self.confinements: list[Confinement] = []


class Reach:
    """What a process that was confined some time ago can pass on to its forks.

    Rules for files hold for what lay at their paths at that time: what has come there since is reached by nobody.
    """

    def __init__(self, confinement: Confinement) -> None:
        self._confinement = confinement
        self._rules = {path: (set(letters), _identity(path)) for path, letters in confinement.paths}

    def covers(self, wanted: Confinement) -> bool:
        """True if a fork that is confined so is not confined further by what it was forked from. Blocking."""
        had = self._confinement
        return (
            had.network >= wanted.network
            and had.unix_sockets >= wanted.unix_sockets
            and had.changes_modes >= wanted.changes_modes
            and all(value <= had.limits.get(name, value) for name, value in wanted.limits.items())
            and all(self._reaches(path, set(letters)) for path, letters in wanted.paths)
        )

    def _reaches(self, path: str, letters: set[str]) -> bool:
        if self._has(path, letters):
            return True
        if _identity(path) is None:
            return True  # nobody does
        return any(self._has(str(parent), letters) for parent in Path(os.path.realpath(path)).parents)

    def _has(self, path: str, letters: set[str]) -> bool:
        given, identity = self._rules.get(path, (set(), None))
        return letters <= given and identity is not None and identity == _identity(path)


def _joined(rules: Iterable[Sequence[str]]) -> Rules:
    joined: dict[str, set[str]] = {}
    for path, letters in rules:
        joined.setdefault(path, set()).update(letters)
    return [(path, "".join(sorted(letters))) for path, letters in joined.items()]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
