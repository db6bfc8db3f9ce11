"""A system call filter: refuses calls that models do not need, where most of the kernel's vulnerabilities have been.

The filter is a program for the kernel's classic BPF machine. It refuses with an error, so that libraries that try a
newer call fall back to an older one. The kernel knows which calls are always allowed, and does not run the filter for
them.
"""

import ctypes
import errno
import os
import struct
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from pybackend_stub.sandbox.kernel import MACHINE, syscall
from pybackend_stub.sandbox.seccomp_numbers import MACHINES, NEWEST, SyscallNumbers
from pybackend_wire.confinement import STRICT, Confinement
from pybackend_wire.zygote import MARK

Instruction = Tuple[int, int, int, int]
"""Operation, jump distance if it holds and if not, operand."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL_PROCESS, _ERROR, _ASK_LISTENER = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
_SYSTEM_CALL, _MACHINE, _FIRST_ARGUMENT, _UPPER_HALF = 0, 4, 16, 4

_SET_MODE_FILTER, _ALL_THREADS, _NEW_LISTENER = 1, 1, 8
_LONGEST_JUMP = 120

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_SOCK_TYPE, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5
_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x10000
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_SET_FLAGS_OF_FILE = (0x40086602, 0x40046602, 0x401C5820)
_F_SETOWN, _F_SETOWN_EX = 8, 15
_PR_SET_PDEATHSIG, _PR_SET_MM, _PR_SCHED_CORE = 1, 35, 62
_S_IFMT, _S_IFCHR, _S_IFBLK = 0xF000, 0x2000, 0x6000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_SHUT_WR, _MSG_FASTOPEN = 1, 0x20000000
_IPPROTO_TCP, _TCP_NODELAY = 6, 1
_TCGETS, _TIOCOUTQ, _FIONREAD, _FIONBIO, _FIOCLEX = 0x5401, 0x5411, 0x541B, 0x5421, 0x5451
_NO_CHANGE = 0xFFFFFFFF
_SIGKILL = 9
_SUCCESS = 0
_SCHEDULING = ("sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity")


def install(confinement: Confinement, signals_are_scoped: bool, *, for_one_program: bool = False) -> int:
    """Load the filter for the rest of this process's life and for everything it starts.

    Args:
        signals_are_scoped: whether Landlock keeps it from signalling other processes.
        for_one_program: whether it will still become another program although it may start none: see
            :mod:`pybackend_stub.sandbox.enter`.

    Returns:
        The descriptor of the listener that is asked before it becomes one, 0 if there is none.

    Raises:
        OSError: the kernel refuses, or there is no filter for this machine.
    """
    machine = MACHINES.get(MACHINE)
    if machine is None:
        raise OSError(errno.ENOSYS, f"there is no filter for machines of type {MACHINE}")
    asks = for_one_program and not confinement.subprocesses
    instructions = program(machine, confinement, os.getpid(), signals_are_scoped, asks_listener=asks)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = _Program(len(instructions), ctypes.addressof(buffer))
    flags = _NEW_LISTENER if asks else _ALL_THREADS
    try:
        return syscall(machine.checked["seccomp"], _SET_MODE_FILTER, flags, ctypes.byref(header))
    except OSError as error:
        if asks and error.errno in {errno.EBUSY, errno.EINVAL}:
            why = "a container around the server listens to system calls itself, or the kernel knows no listeners (Linux 5.5)"
            raise OSError(error.errno, why) from error
        raise


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def program(
    machine: SyscallNumbers,
    confinement: Confinement,
    pid: int,
    signals_are_scoped: bool,
    *,
    asks_listener: bool = False,
) -> "List[Instruction]":
    """Make the filter for one process on one kind of machine."""
    code = _Code()
    code.add(_LOAD, _MACHINE)
    code.add(_EQUAL, machine.audit, 1, 0)
    code.add(_RETURN, _KILL_PROCESS)
    code.add(_LOAD, _SYSTEM_CALL)
    # Newer calls are unreviewed; on x86-64 other numbers for the same calls are up there too.
    code.add(_AT_LEAST, NEWEST + 1, 0, 1)
    code.add(_RETURN, _ERROR | errno.ENOSYS)
    checks = _checks(confinement, pid, signals_are_scoped)
    checks.update(_changes_of_user(confinement))
    numbers = dict(machine.checked)
    if asks_listener:
        numbers["execve"] = machine.starting["execve"]
        checks["execve"] = [(_RETURN, 0, 0, _ASK_LISTENER)]
    for name, body in checks.items():
        if name in numbers:
            code.add(_EQUAL, numbers[name], 0, len(body))
            code.extend(body)
    refused = set(machine.for_nobody.values())
    if not confinement.changes_modes:
        refused |= set(machine.modes.values())
    if not confinement.subprocesses:
        refused |= set(machine.starting.values())
    code.refuse(sorted(refused))
    if confinement.level == STRICT:
        # Libraries take these errors for a kernel and a file system without such features, and do without.
        code.refuse(sorted(machine.watching.values()), errno.ENOSYS)
        code.refuse(sorted(machine.attributes.values()), errno.ENOTSUP)
    code.add(_RETURN, _ALLOW)
    return code


class _Code(List[Instruction]):
    """A list of instructions under construction."""

    def add(self, operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> None:
        self.append((operation, if_true, if_false, operand & 0xFFFFFFFF))

    def refuse(self, numbers: "Sequence[int]", error: int = errno.EPERM) -> None:
        """Refuse the system calls with these numbers with an error; expects that the number is loaded."""
        for start in range(0, len(numbers), _LONGEST_JUMP):
            chunk = numbers[start : start + _LONGEST_JUMP]
            for place, number in enumerate(chunk):
                last = place == len(chunk) - 1
                self.add(_EQUAL, number, 0 if last else len(chunk) - 1 - place, 1 if last else 0)
            self.add(_RETURN, _ERROR | error)


def _checks(confinement: Confinement, pid: int, signals_are_scoped: bool) -> "Dict[str, List[Instruction]]":
    """Return the checks for each call whose arguments matter; every path through a check ends in a return."""
    own = [0, pid]
    checks = {
        "socket": _socket(confinement),
        # A pair of datagram sockets could be connected to another process's socket later.
        "socketpair": (
            _allowed() if confinement.unix_sockets else _only(1, [_SOCK_STREAM, _SOCK_SEQPACKET], mask=_SOCK_TYPE)
        ),
        "clone": _clone(confinement.subprocesses),
        # Its flags are in memory, which a filter cannot see; libc falls back to clone.
        "clone3": _refused(errno.ENOSYS),
        "ioctl": _none_of(1, [_TIOCSTI, _TIOCLINUX, *(() if confinement.changes_modes else _SET_FLAGS_OF_FILE)]),
        "mknod": _none_of(1, [_S_IFCHR, _S_IFBLK], mask=_S_IFMT),
        "mknodat": _none_of(2, [_S_IFCHR, _S_IFBLK], mask=_S_IFMT),
        "prctl": _prctl(may_choose_signal=confinement.subprocesses),
        "setrlimit": _none_of(0, [MARK]),
        "prlimit64": _prlimit(_allowed()),
        # A model's own listener would be asked in place of others, and could say yes.
        "seccomp": [_argument(1), (_ANY_BIT, 0, 1, _NEW_LISTENER), *_refused(errno.EPERM), *_allowed()],
    }
    if not confinement.users:  # otherwise its forks' numbers are unknown; the kernel protects other users' processes
        checks.update(
            prlimit64=_prlimit(_only(0, own)),
            setpriority=_priority(_PRIO_PROCESS, own),
            ioprio_set=_priority(_IOPRIO_WHO_PROCESS, own),
            move_pages=_only(0, own),
        )
    if not confinement.subprocesses or confinement.uid < 0:
        # A filter cannot tell a thread of this process from a process of its user, and libraries set the scheduling of
        # their threads; some abort if that fails. So what is meant for another number succeeds and does nothing.
        checks.update({name: _only(0, own, number=_SUCCESS) for name in _SCHEDULING})
    if not confinement.subprocesses and not signals_are_scoped:
        checks.update(_signals(confinement, pid))
    if confinement.backlog:
        checks.update(_accepting(confinement.backlog))
    return checks


def _accepting(backlog: int) -> "Dict[str, List[Instruction]]":
    """Leave of the calls for sockets what it takes to accept connections and to serve them.

    A connection could otherwise be disconnected, and connected to another address; a listener could be made to take the
    clients of all that share its port, or none for ever.
    """
    return {
        "connect": _refused(errno.EPERM),
        "bind": _refused(errno.EPERM),
        "listen": _only(1, [backlog]),
        "shutdown": _only(1, [_SHUT_WR]),  # the other direction ends a listener
        # An address could only be that of another peer.
        "sendto": [*_unless(_is_zero(4)), *_without(3, _MSG_FASTOPEN)],
        "sendmsg": _without(2, _MSG_FASTOPEN),
        "sendmmsg": _refused(errno.EPERM),
        "setsockopt": [*_unless([_argument(1), (_EQUAL, 1, 0, _IPPROTO_TCP)]), *_only(2, [_TCP_NODELAY])],
        "ioctl": _only(1, [_TCGETS, _TIOCOUTQ, _FIONREAD, _FIONBIO, _FIOCLEX]),
    }


def _signals(confinement: Confinement, pid: int) -> "Dict[str, List[Instruction]]":
    """Forbid signals to other processes, both directly and through file notifications."""
    own = [0, pid]
    flags = () if confinement.changes_modes else _SET_FLAGS_OF_FILE
    return {
        "kill": _only(0, own),
        "tgkill": _only(0, [pid]),
        "tkill": _refused(errno.EPERM),
        "rt_sigqueueinfo": _only(0, [pid]),
        "rt_tgsigqueueinfo": _only(0, [pid]),
        "pidfd_send_signal": _refused(errno.EPERM),
        "fcntl": [
            _argument(1),
            (_EQUAL, 0, 1, _F_SETOWN_EX),
            *_refused(errno.EPERM),
            (_EQUAL, 1, 0, _F_SETOWN),
            *_allowed(),
            *_only(2, own),
        ],
        "ioctl": _none_of(1, [_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP, *flags]),
    }


def _prctl(*, may_choose_signal: bool) -> "List[Instruction]":
    """Forbid outliving the host, changing what the kernel reports about this process, and choosing a core to share.

    A process that may start others may choose another signal, as helper programs do; one that may not is always killed.
    """
    if may_choose_signal:
        signal = [_argument(1), (_EQUAL, 0, 1, 0), *_refused(errno.EPERM), *_allowed()]
    else:
        signal = _only(1, [_SIGKILL])
    return [
        _argument(0),
        (_EQUAL, 0, len(signal), _PR_SET_PDEATHSIG),
        *signal,
        *_none_of(0, [_PR_SET_MM, _PR_SCHED_CORE]),
    ]


def _prlimit(rest: "List[Instruction]") -> "List[Instruction]":
    """Make the limit that serves as a mark read-only; ``rest`` handles everything else."""
    new_limit = 2
    return [
        _argument(1),
        (_EQUAL, 0, 5, MARK),
        _argument(new_limit),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * new_limit + _UPPER_HALF),
        (_EQUAL, 1, 0, 0),
        *_refused(errno.EPERM),
        *rest,
    ]


_USERS_AND_GROUPS = {"setuid": 1, "setgid": 1, "setreuid": 2, "setregid": 2, "setresuid": 3, "setresgid": 3}
"""Number of arguments of each call."""


def _changes_of_user(confinement: Confinement) -> "Dict[str, List[Instruction]]":
    """Allow changes only to its own users and groups, for a process that keeps the privilege to change."""
    if not confinement.users:
        return {}
    numbers = range(confinement.uid, confinement.uid + confinement.users)
    checks = {name: _within(count, numbers) for name, count in _USERS_AND_GROUPS.items()}
    checks.update({name: _refused(errno.EPERM) for name in ("setfsuid", "setfsgid")})
    checks["setgroups"] = _only(0, [0])
    return checks


def _within(count: int, numbers: range) -> "List[Instruction]":
    """Allow a call if each of its first arguments is one of these, or the number for "no change"."""
    body: List[Instruction] = []
    for index in range(count):
        body += [
            _argument(index),
            (_EQUAL, 3, 0, _NO_CHANGE),
            (_AT_LEAST, 0, 1, numbers.start),
            (_AT_LEAST, 0, 1, numbers.stop),
            *_refused(errno.EPERM),
        ]
    return [*body, *_allowed()]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index)


def _allowed() -> "List[Instruction]":
    return [(_RETURN, 0, 0, _ALLOW)]


def _refused(number: int) -> "List[Instruction]":
    return [(_RETURN, 0, 0, _ERROR | number)]


def _is_zero(index: int) -> "List[Instruction]":
    """Go on behind the next instruction if all of an argument is zero."""
    upper = (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index + _UPPER_HALF)
    return [_argument(index), (_EQUAL, 0, 2, 0), upper, (_EQUAL, 1, 0, 0)]


def _unless(condition: "List[Instruction]") -> "List[Instruction]":
    """Refuse a call unless a condition holds, which then goes on behind the next instruction."""
    return [*condition, *_refused(errno.EPERM)]


def _without(index: int, bits: int) -> "List[Instruction]":
    """Allow a call if an argument has none of these bits."""
    return [_argument(index), (_ANY_BIT, 0, 1, bits), *_refused(errno.EPERM), *_allowed()]


def _masked(index: int, mask: "Optional[int]") -> "List[Instruction]":
    return [_argument(index)] + ([] if mask is None else [(_AND, 0, 0, mask)])


def _only(
    index: int, values: "Iterable[int]", mask: "Optional[int]" = None, number: int = errno.EPERM
) -> "List[Instruction]":
    """Allow a call if an argument is one of these."""
    listed = list(values)
    tests = [(_EQUAL, len(listed) - place, 0, value) for place, value in enumerate(listed)]
    return [*_masked(index, mask), *tests, *_refused(number), *_allowed()]


def _none_of(index: int, values: "Iterable[int]", mask: "Optional[int]" = None) -> "List[Instruction]":
    """Allow a call unless an argument is one of these."""
    listed = list(values)
    tests = [(_EQUAL, len(listed) - place, 0, value) for place, value in enumerate(listed)]
    return [*_masked(index, mask), *tests, *_allowed(), *_refused(errno.EPERM)]


def _priority(of_process: int, own: "List[int]") -> "List[Instruction]":
    """Change the priority of this process alone; for a thread, a group or a user the call succeeds and does nothing."""
    return [_argument(0), (_EQUAL, 1, 0, of_process), *_refused(_SUCCESS), *_only(1, own, number=_SUCCESS)]


def _socket(confinement: Confinement) -> "List[Instruction]":
    families = [_AF_UNIX] if confinement.unix_sockets else []
    if not confinement.network:
        return _only(0, families, number=errno.EACCES)
    # Allow only one of the kernel's own protocols, the one for addresses and routes, which name resolution needs.
    netlink = _only(2, [_NETLINK_ROUTE], number=errno.EACCES)
    return [
        _argument(0),
        (_EQUAL, 0, len(netlink), _AF_NETLINK),
        *netlink,
        *_only(0, [*families, _AF_INET, _AF_INET6], number=errno.EACCES)[1:],
    ]


def _clone(subprocesses: bool) -> "List[Instruction]":
    """Allow threads, and processes if permitted; never a namespace."""
    if subprocesses:
        return [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), *_refused(errno.EPERM), *_allowed()]
    return [
        _argument(0),
        (_ANY_BIT, 1, 0, _NEW_NAMESPACES),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        *_refused(errno.EPERM),
        *_allowed(),
    ]
