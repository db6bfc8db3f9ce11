"""User ids for models' processes, from a range that nothing else on this machine uses, and the end of their processes."""

import fcntl
import logging
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
_TIMEOUT_S = 20.0
_MOST_ROUNDS = 5


def end_processes_of(uid: int, gid: int) -> bool:
    """Kill every process of a user; True if none remains.

    A process of that user sends the signal: the kernel then delivers it to all of the user's processes at once, so that
    none can escape by forking, and to no others.
    """
    for _ in range(_MOST_ROUNDS):
        if not any(_processes_of(uid)):
            return True
        try:
            _kill_all_as(uid, gid)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("cannot kill the processes of user %d: %s", uid, error)
            return False
    return not any(_processes_of(uid))


def users_with_processes(numbers: Collection[int]) -> set[int]:
    """Return those of these ids that running processes have as a user or group."""
    return {uid for users, _ in _running((b"Uid", b"Gid", b"Groups")) for uid in users if uid in numbers}


def _kill_all_as(uid: int, gid: int) -> None:
    shell = ["/bin/sh", "-c", "kill -9 -1"]
    python = [sys.executable, "-I", "-S", "-c", _KILL_ALL]
    for command in (shell, python):
        try:
            # The sender does not signal itself, so it exits with a status, which does not matter.
            subprocess.run(
                command,
                user=uid,
                group=gid,
                extra_groups=[],
                env={},
                cwd="/",
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (FileNotFoundError, PermissionError):
            continue  # there is no such program, or that user cannot run it
        return
    raise FileNotFoundError("there is neither a shell nor a Python that other users can run")


def _processes_of(uid: int) -> Iterator[int]:
    return (pid for users, pid in _running() if uid in users)


def _running(kinds: Iterable[bytes] = (b"Uid",)) -> Iterator[tuple[set[int], int]]:
    """Yield ids (of users, or other ``kinds``) and process id of running processes; zombies are left out."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/status", "rb") as file:
                    lines = dict(line.split(b":", 1) for line in file)
            except OSError:
                continue  # it is gone already
            if lines[b"State"].split()[0] not in {b"Z", b"X"}:
                yield {int(number) for name in kinds for number in lines[name].split()}, int(entry.name)


PER_SERVER = 4096
"""User ids per running server. Each server on a machine has a separate range."""

_MOST_SERVERS = 64

_BLOCKS = 16
"""Number of blocks in which a server's user ids can be handed out."""

_RANGES = (1_879_100_000, 61_184)
"""Possible starts of the range, the best first: ids that systemd assigns to nothing, and ids that it lends to services
temporarily, for servers in a container that maps few ids."""

_MOST_DIGITS = 20


class NoUsersError(Exception):
    """No user ids are available; the text says why."""


class UsersNotMappedError(NoUsersError):
    """This machine, or the container, does not have these user ids at all."""


class UserRange:
    """Hands out ids for users and groups.

    A lock on a file reserves the range, in a directory that only the superuser can enter: the range is free again when
    this process is gone, however it ends. The file stores the next id, for the next server too: files that one user has
    left in ``/tmp`` belong to no other until all ids have had their turn.
    """

    def __init__(self, directories: Iterable[Path] | None = None) -> None:
        self._directories = list(
            directories or (Path("/run/pybackend-users"), Path(tempfile.gettempdir()) / "pybackend-users")
        )
        self._claim = -1
        self._first = 0
        self._count = 0
        self._taken: set[int] = set()
        self._next = 0
        self._next_block = 0
        self._changing = threading.Lock()  # models load concurrently, in threads

    def take(self) -> int:
        """Return an id that no process has."""
        with self._changing:
            if self._claim < 0:
                self._open()
            for _ in range(self._count):
                number = self._first + self._next
                self._next = (self._next + 1) % self._count
                if number not in self._taken:
                    self._taken.add(number)
                    with suppress(OSError):  # then the next server begins elsewhere
                        os.pwrite(self._claim, f"{self._next:0{_MOST_DIGITS}}".encode(), 0)
                    return number
        raise NoUsersError(f"all {self._count} users for models are taken")

    def take_block(self) -> range:
        """Return consecutive ids that no process has."""
        with self._changing:
            if self._claim < 0:
                self._open()
            size = self._count // _BLOCKS
            for turn in range(_BLOCKS):  # from the end opposite to single ids, so that these leave blocks whole
                place = (self._next_block - turn) % _BLOCKS
                block = range(self._first + place * size, self._first + (place + 1) * size)
                if self._taken.isdisjoint(block):
                    self._taken.update(block)
                    self._next_block = (place - 1) % _BLOCKS
                    return block
        raise NoUsersError("no block of consecutive users for models is left")

    def give_back(self, *numbers: int) -> None:
        """Take back ids that no process has any more."""
        with self._changing:
            self._taken.difference_update(numbers)

    def close(self) -> None:
        if self._claim >= 0:
            os.close(self._claim)
            self._claim = -1

    def _open(self) -> None:
        first, count, servers = _usable_range()
        directory = self._directory()
        slots = list(range(servers))
        secrets.SystemRandom().shuffle(slots)
        for slot in slots:
            claim = _locked(directory / str(first + slot * count))
            if claim >= 0:
                self._claim, self._first, self._count = claim, first + slot * count, count
                break
        else:
            raise NoUsersError(f"{servers} servers on this machine have taken all users for models")
        with suppress(ValueError):
            self._next = int(os.pread(claim, _MOST_DIGITS, 0)) % count
        if not os.fstat(claim).st_size:
            self._next = secrets.randbelow(count)
        self._next_block = (self._next * _BLOCKS // count - 1) % _BLOCKS
        alive = users_with_processes(range(self._first, self._first + count))
        if alive:
            log.warning("users with processes left by an earlier server are not given to models: %s", sorted(alive))
            self._taken.update(alive)

    def _directory(self) -> Path:
        why = ""
        for path in self._directories:
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = path.lstat()
            except OSError as error:
                why = f"{path}: {error.strerror}"
                continue
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return path
            why = f"{path} does not belong to the superuser alone"
        raise NoUsersError(f"they cannot be reserved: {why}")


def _locked(path: Path) -> int:
    """Open and lock a file for this process alone; returns a descriptor, -1 if another process has locked it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NoUsersError(f"they cannot be reserved: {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def _usable_range() -> tuple[int, int, int]:
    """Return the first id, the number of ids per server, and the number of servers."""
    for first in _RANGES:
        if first == _RANGES[-1] and _is_mapped(first, 4096):
            return first, 256, 16
        if _is_mapped(first, PER_SERVER * _MOST_SERVERS):
            return first, PER_SERVER, _MOST_SERVERS
    raise UsersNotMappedError("this container maps no users that models could have")


def _is_mapped(first: int, count: int) -> bool:
    """Whether these users and groups exist in the user namespace of this process."""
    for name in ("uid_map", "gid_map"):
        ranges = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{name}").read_text().splitlines()]
        if not any(inside <= first and first + count <= inside + size for inside, _, size in ranges):
            return False
    return os.geteuid() == 0
