"""Decides which user can reach the files of a model, and says how to mend it if none can.

A process of a model has no privileges. So it is bound by file permissions even if its user is root: a directory that
another user keeps to himself, such as a home directory, is closed to it. That is known before a process starts.
"""

import logging
import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.sandbox.file_access import (
    Account,
    Obstacle,
    is_enforced,
    links_below,
    obstacle,
    obstacle_below,
    obstacle_on_way,
)
from pybackend.sandbox.file_rules import contains
from pybackend_wire.confinement import STRICT
from pybackend_wire.installation import install_command

log = logging.getLogger(__name__)

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where Pythons lie that all may run."""

_OLDEST_MINOR = 11
"""The oldest Python that runs a server is 3.11."""


@dataclass(frozen=True)
class ProcessUser:
    """A user that a model's process could have."""

    account: Account | None  # for checks; None for the user of this process with its rights
    subject: str
    listed_as: str = ""  # its name in an access control list; "" if the number differs at every start, or if it is root


def separate_user(uid: int, gid: int) -> ProcessUser:
    """A user that the server assigns. No list of permissions can name it, because the number differs at every start."""
    return ProcessUser(Account(uid, frozenset({gid})), "other users")


def given_user(uid: int, gid: int) -> ProcessUser:
    """A user that the model's configuration names."""
    return ProcessUser(Account(uid, frozenset({gid})), f"user {uid}, which SANDBOX_UID names,", str(uid))


def user_of(uid: int) -> ProcessUser:
    """A user of the machine, with the groups that a login gives."""
    try:
        entry = pwd.getpwuid(uid)
        groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    except (KeyError, OSError):
        groups = frozenset()
    return ProcessUser(Account(uid, groups), f"user {name_of(uid)}")


def server_user() -> ProcessUser:
    """The server's own user. A process of a model loses root's privileges, and with them access to closed places."""
    if os.geteuid() == 0:
        groups = frozenset({os.getegid(), *os.getgroups()})
        return ProcessUser(Account(0, groups), "root without privileges")
    name = name_of(os.geteuid())
    return ProcessUser(None, f"the server's user {name}", name)


def name_of(uid: int) -> str:
    """The name of a user; the number for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Part(Enum):
    """A part of what a model needs; the value ends the phrase "where ... lies"."""

    MODEL = "the model"
    PYTHON = "the server's Python"
    ENVIRONMENT = "the model's environment"
    BUNDLE = "the code of model processes"
    OTHER = "a file that it uses"


@dataclass(frozen=True)
class Needs:
    """The files of a model, by the reason why it needs them."""

    directory: Path
    version_directory: Path
    model_file: Path
    python: Path
    installations: Sequence[str]  # directories without which the interpreter cannot run a model
    packages: Sequence[str]  # further directories that it searches for modules
    prefix: Path | None  # of the environment, None for the server's own Python
    bundle: str
    promised: Sequence[str]  # paths that options of the sandbox name
    repositories: Sequence[str]
    server: Sequence[str]  # files without which a user cannot run a server like this one
    command: str
    is_unpacked: bool = False  # whether the server has unpacked the environment into its cache


@dataclass(frozen=True)
class Blocked:
    """An obstacle, and the part of a model's files that lies behind it."""

    place: Obstacle
    part: Part

    @property
    def behind(self) -> str:
        """The end of a sentence about the place."""
        return f", where {self.part.value} lies" if self.place.on_way else ""


class ModelReach:
    """The parts of a model's files that users can reach. All methods block."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        python = Part.PYTHON if needs.prefix is None else Part.ENVIRONMENT
        files = [needs.directory, needs.version_directory, needs.model_file]
        self._parts = {
            Part.MODEL: [str(path) for path in files],
            python: [str(needs.python), *needs.installations],
            Part.BUNDLE: [needs.bundle],
        }

    def essential(self, account: Account | None) -> Blocked | None:
        """Find what keeps a user from running the model at all."""
        for part, paths in self._parts.items():
            place = obstacle(paths, account)
            if place is not None:
                return Blocked(place, part)
        return None

    def of_operator(self, account: Account | None) -> Blocked | None:
        """Find an obstacle that is not part of what authors brought: the model's directory and its environment."""
        brought = [str(path) for path in (self._needs.directory, self._needs.prefix) if path]
        for part, paths in self._all_parts().items():
            ways = [path for path in paths if any(contains(top, path) for top in brought)]
            tops = [top for top in brought if any(contains(top, path) for path in ways)]
            others = [path for path in paths if path not in ways]
            place = obstacle_on_way(tops, account) or obstacle(others, account)
            if place is not None:
                return Blocked(place, part)
        return None

    def of_author(self, account: Account | None) -> Blocked | None:
        """Find any obstacle, also among files of the version's directory that the model may not use."""
        for part, paths in self._all_parts().items():
            place = obstacle(paths, account)
            if place is not None:
                return Blocked(place, part)
        place = obstacle_below(str(self._needs.version_directory), account)
        return None if place is None else Blocked(place, Part.MODEL)

    def unreached(self, account: Account | None, *, follows_links: bool) -> tuple[str, Blocked] | None:
        """Find a file that the model may use and cannot reach, with the reason why it might.

        Args:
            follows_links: whether the model may reach files outside its directory by links in it.
        """
        below = obstacle_below(str(self._needs.version_directory), account)
        if below is not None:
            return below.path, Blocked(below, Part.MODEL)
        links = links_below(str(self._needs.version_directory)) if follows_links else []
        for path in (*self._needs.promised, *links, *self._needs.packages):
            place = obstacle([path], account) if os.path.exists(path) else None
            if place is not None:
                return path, Blocked(place, Part.OTHER)
        return None

    def _all_parts(self) -> dict[Part, list[str]]:
        return {**self._parts, Part.PYTHON: [*self._parts.get(Part.PYTHON, []), *self._needs.packages]}

    # Advice

    def advice(self, blocked: Blocked, user: ProcessUser) -> str:
        """Say how to mend it: the most sensible command, then others."""
        if not blocked.place.on_way:
            return f"Run {self._opened(blocked, user)}"
        ways = [*self._as_owner(blocked, user), *self._elsewhere(blocked, user), self._opened(blocked, user)]
        first, *others = [way if way[0] != "`" else f"let it pass, {way}" for way in ways]
        return f"{first[0].upper()}{first[1:]}" + (f". Or {', or '.join(others)}" if others else "")

    def _opened(self, blocked: Blocked, user: ProcessUser) -> str:
        """The command that opens a place for this user if a list can name it, else for all."""
        path, way = blocked.place.path, blocked.place.on_way
        if not way and contains(str(self._needs.version_directory), path):
            path = str(self._needs.version_directory)
        if user.listed_as:
            return f"`setfacl {'' if way else '-R '}-m u:{user.listed_as}:{'x' if way else 'rX'} {shlex.quote(path)}`"
        return f"`chmod {'o+x' if way else '-R o+rX'} {shlex.quote(path)}`"

    def _as_owner(self, blocked: Blocked, user: ProcessUser) -> list[str]:
        owner = blocked.place.owner
        if owner == 0 or user.listed_as or obstacle(self._needs.server, user_of(owner).account):
            return []
        name = name_of(owner)
        account = name if not name.isdecimal() else f"'#{name}'"
        return [
            f"run the server as the user who owns it: `sudo -u {account} {self._needs.command} serve {self._repository()}`"
        ]

    def _elsewhere(self, blocked: Blocked, user: ProcessUser) -> list[str]:
        place = next(path for path in ("/srv", "/opt", "/") if path == "/" or not contains(path, blocked.place.path))
        if blocked.part is Part.MODEL and not user.listed_as:
            return [f"move the models where all may enter, `mv {self._repository()} {place}`"]
        if blocked.part is Part.PYTHON:
            python = _python_outside(blocked.place.path)
            install = install_command(pip=f"{python} -m venv /opt/pybackend && /opt/pybackend/bin/pip")
            return [f"install the server where all may enter, {install}"] if python else []
        if blocked.part is Part.ENVIRONMENT and self._needs.is_unpacked:
            return ["have it unpacked where all may enter, `--environment-cache-directory=/var/cache/pybackend`"]
        if blocked.part is Part.ENVIRONMENT:
            return [f"make the environment where all may enter, below {place}"]
        if blocked.part is Part.BUNDLE:
            return ["set XDG_CACHE_HOME=/var/cache for the server"]
        return []

    def _repository(self) -> str:
        directory = os.path.realpath(self._needs.directory)
        tops = [path for path in self._needs.repositories if contains(path, directory)]
        return shlex.quote(tops[0] if tops else os.path.dirname(directory))


def _python_outside(closed: str) -> str:
    """A Python of the system that can run the server and does not lie below a closed directory.

    Empty if there is none.
    """
    for minor in range(sys.version_info.minor, _OLDEST_MINOR - 1, -1):
        path = shutil.which(f"python3.{minor}", path=SYSTEM_PATH)
        if path is not None and not contains(closed, os.path.realpath(path)):
            return path
    return ""


def check_reach(name: str, reach: ModelReach, user: ProcessUser) -> None:
    """Check that a user reaches what a model needs to run. Blocking."""
    blocked = reach.essential(user.account)
    if blocked is not None and is_enforced(blocked.place, user.account):
        why = f"{user.subject} cannot {blocked.place.verb} {blocked.place.path}{blocked.behind}"
        raise _refusal(name, f"it could not run, because {why}. {reach.advice(blocked, user)}")


def objection_to(separate: ProcessUser, name: str, reach: ModelReach, level: str) -> str:
    """Return the reason why a model must not have its own user but stay root; ``""`` if it may have it. Blocking.

    Raises ModelLoadError if it can have neither, or may not stay root because its author closed the files.
    """
    of_operator, of_author = reach.of_operator(separate.account), reach.of_author(separate.account)
    blocked = of_operator or of_author
    if blocked is None:
        return ""
    closed = f"{blocked.place.path}{blocked.behind}"
    told = f"{separate.subject} cannot {blocked.place.verb} {closed}. {reach.advice(blocked, separate)}"
    if of_operator is None and level == STRICT:
        raise _refusal(name, f"at SANDBOX '{STRICT}' it must have its own user, but {told}")
    root = server_user()
    for_all = reach.essential(root.account)
    if for_all is not None and is_enforced(for_all.place, root.account):
        neither = (
            f"neither a separate user nor {root.subject} can {for_all.place.verb} {for_all.place.path}{for_all.behind}"
        )
        raise _refusal(name, f"it could not run, because {neither}. {reach.advice(for_all, root)}")
    if reach.essential(separate.account) is None and reach.of_author(root.account) is not None:
        return ""  # root would not reach everything either
    return told


def warn_of_closed_files(name: str, reach: ModelReach, user: ProcessUser, *, follows_links: bool) -> None:
    """Log the first file that a model may use and that is closed to its user. Blocking."""
    found = reach.unreached(user.account, follows_links=follows_links)
    if found is None:
        return
    path, blocked = found
    what = f"{user.subject} cannot {blocked.place.verb} {blocked.place.path}"
    reason = what if path == blocked.place.path else f"{path} is out of reach, because {what}"
    log.warning("model '%s' may miss a file: %s. %s", name, reason, reach.advice(blocked, user))


def _refusal(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(f"model '{name}' is not loaded: {why}", ErrorCode.UNAVAILABLE)
