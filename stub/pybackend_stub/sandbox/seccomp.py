"""A filter of system calls: what models have no use for, and what the kernel has had most of its holes in, is refused.

The filter is a program for the kernel's classic BPF machine. It refuses with an error, so that libraries which try something
new fall back to what they did before; the kernel knows the calls that are always allowed, and does not run it for them.
"""

import ctypes
import errno
import os
import struct
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from pybackend_stub.sandbox.kernel import MACHINE, syscall
from pybackend_stub.sandbox.seccomp_numbers import MACHINES, Machine
from pybackend_wire.confinement import Confinement

Instruction = Tuple[int, int, int, int]
"""Operation, how far to jump if it holds and if not, operand."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_SYSTEM_CALL, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
_X32_CALLS = 0x40000000

_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_LONGEST_JUMP = 120

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_SOCK_TYPE, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5
_NEW_NAMESPACES = 0x7E020080
_CLONE_THREAD = 0x10000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_S_IFMT, _S_IFCHR, _S_IFBLK = 0xF000, 0x2000, 0x6000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_NO_CHANGE = 0xFFFFFFFF


def install(confinement: Confinement, signals_are_scoped: bool) -> None:
    """Load the filter, for ever, for this process and all that it starts.

    Raises:
        OSError: the kernel refuses, or there is no filter for this machine.
    """
    machine = MACHINES.get(MACHINE)
    if machine is None:
        raise OSError(errno.ENOSYS, f"there is no filter for machines of type {MACHINE}")
    instructions = program(machine, confinement, os.getpid(), signals_are_scoped)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = _Program(len(instructions), ctypes.addressof(buffer))
    syscall(machine.seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(header))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def program(machine: Machine, confinement: Confinement, pid: int, signals_are_scoped: bool) -> "List[Instruction]":
    """The filter for one process of one kind of machine."""
    code = _Code()
    code.add(_LOAD, _MACHINE)
    code.add(_EQUAL, machine.audit, 1, 0)
    code.add(_RETURN, _KILL_PROCESS)
    code.add(_LOAD, _SYSTEM_CALL)
    if machine is MACHINES["x86_64"]:
        code.add(_AT_LEAST, _X32_CALLS, 0, 1)  # other numbers for the same calls
        code.add(_RETURN, _ERROR | errno.ENOSYS)
    checks = _checks(confinement, pid, signals_are_scoped)
    checks.update(_changes_of_user(confinement))
    for name, body in checks.items():
        if name in machine.checked:
            code.add(_EQUAL, machine.checked[name], 0, len(body))
            code.extend(body)
    refused = set(machine.for_nobody.values())
    if not confinement.changes_modes:
        refused |= set(machine.modes.values())
    if not confinement.subprocesses:
        refused |= set(machine.starting.values())
    code.refuse(sorted(refused))
    code.add(_RETURN, _ALLOW)
    return code


class _Code(List[Instruction]):
    """Instructions as they gather."""

    def add(self, operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> None:
        self.append((operation, if_true, if_false, operand & 0xFFFFFFFF))

    def refuse(self, numbers: "Sequence[int]") -> None:
        """EPERM for the system calls with these numbers; their number is loaded."""
        for start in range(0, len(numbers), _LONGEST_JUMP):
            chunk = numbers[start : start + _LONGEST_JUMP]
            for place, number in enumerate(chunk):
                last = place == len(chunk) - 1
                self.add(_EQUAL, number, 0 if last else len(chunk) - 1 - place, 1 if last else 0)
            self.add(_RETURN, _ERROR | errno.EPERM)


def _checks(confinement: Confinement, pid: int, signals_are_scoped: bool) -> "Dict[str, List[Instruction]]":
    """For each call whose arguments matter what is done with it; every way through ends in a return."""
    strict_about_others = not confinement.subprocesses
    own = [0, pid]
    of_own = {
        "prlimit64": _only(0, own),
        "setpriority": _priority(_PRIO_PROCESS, own),
        "ioprio_set": _priority(_IOPRIO_WHO_PROCESS, own),
        "move_pages": _only(0, own),
    }
    if confinement.users:
        of_own = {}  # the numbers of its forks are not known: the kernel keeps each user to his own processes
    checks = {
        **of_own,
        "socket": _socket(confinement),
        # A pair of datagram sockets can be pointed at somebody else's socket later.
        "socketpair": (
            _allowed() if confinement.unix_sockets else _only(1, [_SOCK_STREAM, _SOCK_SEQPACKET], mask=_SOCK_TYPE)
        ),
        "clone": _clone(confinement.subprocesses),
        # Its flags lie in memory, where no filter sees them: libc falls back to clone.
        "clone3": _refused(errno.ENOSYS),
        "ioctl": _none_of(1, [_TIOCSTI, _TIOCLINUX]),
        "mknod": _none_of(1, [_S_IFCHR, _S_IFBLK], mask=_S_IFMT),
        "mknodat": _none_of(2, [_S_IFCHR, _S_IFBLK], mask=_S_IFMT),
    }
    if strict_about_others:
        # Threads may be meant too, whose numbers nobody knows beforehand: only where nothing else can be.
        for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
            checks[name] = _only(0, own)
        if not signals_are_scoped:
            checks["kill"] = _only(0, own)
            checks["tgkill"] = _only(0, [pid])
            checks["tkill"] = _refused(errno.EPERM)
            checks["pidfd_send_signal"] = _refused(errno.EPERM)
    return checks


_USERS_AND_GROUPS = {"setuid": 1, "setgid": 1, "setreuid": 2, "setregid": 2, "setresuid": 3, "setresgid": 3}
"""How many numbers each of them takes."""


def _changes_of_user(confinement: Confinement) -> "Dict[str, List[Instruction]]":
    """Only into its own users and groups, where it keeps the privilege of changing at all."""
    if not confinement.users:
        return {}
    numbers = range(confinement.uid, confinement.uid + confinement.users)
    checks = {name: _within(count, numbers) for name, count in _USERS_AND_GROUPS.items()}
    checks.update({name: _refused(errno.EPERM) for name in ("setfsuid", "setfsgid")})
    checks["setgroups"] = _only(0, [0])
    return checks


def _within(count: int, numbers: range) -> "List[Instruction]":
    """Allow a call if each of its first arguments is one of these, or the number that says that nothing changes."""
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
    """Allow a change of priority of this process, not of a group or a user."""
    who = _only(1, own)
    return [_argument(0), (_EQUAL, 1, 0, of_process), *_refused(errno.EPERM), *who]


def _socket(confinement: Confinement) -> "List[Instruction]":
    families = [_AF_UNIX] if confinement.unix_sockets else []
    if not confinement.network:
        return _only(0, families, number=errno.EACCES)
    # Of the kernel's own protocols only the one that tells addresses and routes, which looking up names needs.
    netlink = _only(2, [_NETLINK_ROUTE], number=errno.EACCES)
    return [
        _argument(0),
        (_EQUAL, 0, len(netlink), _AF_NETLINK),
        *netlink,
        *_only(0, [*families, _AF_INET, _AF_INET6], number=errno.EACCES)[1:],
    ]


def _clone(subprocesses: bool) -> "List[Instruction]":
    """Threads, and processes if they may be; never a namespace."""
    if subprocesses:
        return [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), *_refused(errno.EPERM), *_allowed()]
    return [
        _argument(0),
        (_ANY_BIT, 1, 0, _NEW_NAMESPACES),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        *_refused(errno.EPERM),
        *_allowed(),
    ]
