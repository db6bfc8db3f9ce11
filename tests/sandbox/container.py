"""Runs a command under the limits that containers usually have, without a container: capabilities, system calls, user.

``python -m tests.sandbox.container docker COMMAND...``: root with the fourteen capabilities and the filter of Docker's
default. ``python -m tests.sandbox.container old COMMAND...``: the same, where Landlock is refused too.
``python -m tests.sandbox.container kubernetes UID COMMAND...``: the "restricted" profile: another user, no
capabilities, no new privileges, the same filter.
"""

import ctypes
import errno
import os
import struct
import sys
import tempfile

from pybackend_stub.sandbox import seccomp
from pybackend_stub.sandbox.kernel import MACHINE, prctl, syscall
from pybackend_stub.sandbox.seccomp_numbers import MACHINES

_KEPT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}

_ALLOWED_THERE = {
    "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "pidfd_getfd", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev",
    "ptrace", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget", "chroot", "migrate_pages",
}  # fmt: skip

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 38, 24
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020000
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


_LANDLOCK = (444, 445, 446)


def load_filter(*more: int) -> None:
    """Refuse what containers refuse, and more calls by their numbers."""
    machine = MACHINES[MACHINE]
    code = seccomp._Code()
    code.add(seccomp._LOAD, seccomp._SYSTEM_CALL)
    namespaces = [
        seccomp._argument(0),
        (seccomp._ANY_BIT, 0, 1, _NEW_NAMESPACES),
        *seccomp._refused(errno.EPERM),
        *seccomp._allowed(),
    ]
    for number, body in ((_CLONE[MACHINE], namespaces), (_CLONE3, seccomp._refused(errno.ENOSYS))):
        code.add(seccomp._EQUAL, number, 0, len(body))
        code.extend(body)
    code.refuse(sorted([*more, *(machine.for_nobody[name] for name in machine.for_nobody.keys() - _ALLOWED_THERE)]))
    code.add(seccomp._RETURN, seccomp._ALLOW)
    raw = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    syscall(machine.checked["seccomp"], 1, 0, ctypes.byref(seccomp._Program(len(code), ctypes.addressof(buffer))))


def mount_as_in_a_pod() -> None:
    """In a view of the file system that is this process's own.

    Raises:
        OSError: that is not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> None:
        if result:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    checked(libc.unshare(_CLONE_NEWNS))
    checked(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
    temporary = tempfile.gettempdir()
    for path, options in (("/dev/shm", b"size=64m,mode=1777"), (temporary, b"mode=1777")):
        checked(libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options))
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        points = {line.split()[1] for line in mounts} - {temporary}
    for point in sorted(points):
        if not point.startswith(("/proc", "/sys", "/dev/")):
            checked(libc.mount(None, point.encode(), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None))


def main(arguments: list[str]) -> None:
    """Become confined, and run the rest of the arguments."""
    kind, *command = arguments
    if kind == "pod":
        mount_as_in_a_pod()
    as_root = kind in {"docker", "old"}
    kept = _KEPT_CAPABILITIES if as_root else set()
    for capability in range(64):
        if capability not in kept:
            try:
                prctl(_PR_CAPBSET_DROP, capability)
            except OSError:
                break
    if as_root:
        load_filter(*(_LANDLOCK if kind == "old" else ()))
    else:
        uid = int(command.pop(0))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        load_filter()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
