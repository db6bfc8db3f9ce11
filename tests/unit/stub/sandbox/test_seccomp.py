"""The filter of a front end by machine: what it says of each call, as the kernel would run it."""

import errno
import socket

import pytest

from pybackend_stub.sandbox.seccomp import program
from pybackend_stub.sandbox.seccomp_numbers import MACHINES
from pybackend_wire.confinement import STRICT, Confinement

_FRONT_END = Confinement(
    level=STRICT,
    paths=(),
    limits={},
    variables={},
    missing={},
    network=False,
    unix_sockets=False,
    backlog=7,
    subprocesses=False,
    changes_modes=False,
)
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000 | errno.EPERM
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_TCP, _SOCKET = socket.IPPROTO_TCP, socket.SOL_SOCKET
_HIGH_POINTER = 1 << 40  # its lower half is zero

# (call, arguments, whether it is allowed)
CALLS = [
    ("connect", (5,), False),
    ("bind", (5,), False),
    ("listen", (5, 7), True),
    ("listen", (5, 0), False),
    ("shutdown", (5, socket.SHUT_WR), True),
    ("shutdown", (5, socket.SHUT_RD), False),
    ("shutdown", (5, socket.SHUT_RDWR), False),
    ("sendto", (5, 1000, 10, 0, 0, 0), True),
    ("sendto", (5, 1000, 10, socket.MSG_NOSIGNAL, 0, 0), True),
    ("sendto", (5, 1000, 10, 0, 2000, 16), False),
    ("sendto", (5, 1000, 10, 0, _HIGH_POINTER, 16), False),
    ("sendto", (5, 1000, 10, socket.MSG_FASTOPEN, 0, 0), False),
    ("sendmsg", (5, 1000, socket.MSG_NOSIGNAL), True),
    ("sendmsg", (5, 1000, socket.MSG_FASTOPEN), False),
    ("sendmmsg", (5, 1000, 1, 0), False),
    ("setsockopt", (5, _TCP, socket.TCP_NODELAY), True),
    ("setsockopt", (5, _TCP, socket.TCP_CORK), False),
    ("setsockopt", (5, _SOCKET, socket.TCP_NODELAY), False),
    ("setsockopt", (5, _SOCKET, socket.SO_REUSEPORT), False),
    ("ioctl", (5, 0x5421), True),
    ("ioctl", (5, 0x8912), False),
    ("ioctl", (5, 0x8901), False),
]


def _verdict(instructions, machine, number, arguments):
    """Run a program of the classic BPF machine on a call, as far as filters use that."""
    words = {0: number, 4: machine.audit}
    for place in range(6):
        value = arguments[place] if place < len(arguments) else 0
        words[16 + 8 * place], words[20 + 8 * place] = value & 0xFFFFFFFF, value >> 32
    at = loaded = 0
    while True:
        operation, if_true, if_false, operand = instructions[at]
        at += 1
        if operation == _RETURN:
            return operand
        if operation == _LOAD:
            loaded = words[operand]
        elif operation == _AND:
            loaded &= operand
        else:
            holds = {_EQUAL: loaded == operand, _AT_LEAST: loaded >= operand, _ANY_BIT: bool(loaded & operand)}
            at += if_true if holds[operation] else if_false


@pytest.mark.parametrize("signals_are_scoped", [True, False])
@pytest.mark.parametrize("name", MACHINES)
def test_a_front_end_uses_sockets_only_to_serve_connections(name, signals_are_scoped):
    machine = MACHINES[name]
    instructions = program(machine, _FRONT_END, 1000, signals_are_scoped)
    got = [
        (call, arguments, _verdict(instructions, machine, machine.checked[call], arguments))
        for call, arguments, _ in CALLS
    ]
    assert got == [(call, arguments, _ALLOWED if allowed else _REFUSED) for call, arguments, allowed in CALLS]
