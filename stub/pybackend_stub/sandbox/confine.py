"""Removes permissions from this process, layer by layer, in the one order that works.

Everything here affects the calling thread and whatever it starts later, so it must run while there is only one thread:
before numpy, whose libraries start some, and before any code of a model. Layers that need privileges come first, then
the privileges go. The system call filter comes last, because it refuses calls that the steps before it need.
"""

import ctypes
import errno
import os
import resource
import signal
import struct
from typing import Callable, Collection, Dict, Iterable

from pybackend_stub.sandbox import landlock, seccomp
from pybackend_stub.sandbox.home import offer
from pybackend_stub.sandbox.kernel import MACHINE, parent_signal, prctl, syscall
from pybackend_stub.sandbox.seccomp_numbers import MACHINES
from pybackend_wire.confinement import Confinement, hides_memory

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 23, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL, _PR_SET_KEEPCAPS = 47, 2, 4, 8
_CAPABILITY_VERSION = 0x20080522
_MOST_CAPABILITIES = 64
_CAP_SETGID, _CAP_SETUID = 6, 7


class ConfinementError(Exception):
    """A required layer is not in force, so this process must not continue."""


def confine(
    confinement: Confinement,
    keep: "Iterable[int]" = (),
    load_filter: "Callable[[Confinement, bool], object]" = seccomp.install,
) -> "Dict[str, str]":
    """Confine this process for the rest of its life.

    Args:
        keep: descriptors to keep open, besides the standard ones.

    Returns:
        For every layer the reason why it is not in force, or an empty text.

    Raises:
        ConfinementError: there is more than one thread, or a required layer cannot be applied.
    """
    if len(os.listdir("/proc/self/task")) != 1:
        raise ConfinementError("a process can only be confined while it has one thread")
    report = _Report(confinement.missing)
    report.layer("descriptors", lambda: _close_others({0, 1, 2, *keep}))
    if confinement.umask >= 0:
        os.umask(confinement.umask)
    report.layer("limits", lambda: _limit(confinement.limits))
    report.layer("memory_pressure", lambda: _offer_to_the_kernel(confinement.oom_score_adj))
    asked, parent = parent_signal(), os.getppid()
    kept = (_CAP_SETUID, _CAP_SETGID) if confinement.users else ()
    report.layer("capabilities", lambda: _leave_bounding_set(kept))
    if confinement.uid >= 0:
        report.layer("uid", lambda: _become(confinement.uid, confinement.gid, keeps_privileges=bool(kept)))
    elif "uid" not in report:
        report["uid"] = "it shares the user of the host"
    report.layer("capabilities", lambda: _drop_capabilities(kept))
    report.layer("parent", lambda: _stay_with_parent(asked, parent))
    report.layer("no_new_privileges", lambda: prctl(_PR_SET_NO_NEW_PRIVS, 1))
    _set_environment(confinement)
    known = landlock.version()
    report.layer("files", lambda: _restrict_files(known, confinement))
    report.layer("neighbours", lambda: _check_files(report))
    report.layer("signals", lambda: _check_scopes(known, report))
    report.layer("memory", lambda: prctl(_PR_SET_DUMPABLE, int(not hides_memory(confinement, report))))
    report.layer("system_calls", lambda: load_filter(confinement, known >= landlock.SCOPES))
    missing = [name for name in confinement.required if report.get(name)]
    if missing:
        why = "; ".join(f"{name}: {report[name]}" for name in missing)
        raise ConfinementError(f"required sandbox layers are not in force: {why}")
    for outside, inside, kind in confinement.offers:
        offer(outside, inside, kind)
    return report


class _Report(Dict[str, str]):
    def layer(self, name: str, apply: "Callable[[], object]") -> None:
        """Apply a layer and record the outcome; a layer that is known to be missing stays so."""
        if self.get(name):
            return
        try:
            apply()
            self[name] = ""
        except (OSError, ValueError) as error:
            self[name] = getattr(error, "strerror", None) or str(error)


def _close_others(kept: "set[int]") -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError as error:
                if error.errno != errno.EBADF:  # the descriptor of the listing itself
                    raise


def _limit(limits: "Dict[str, int]") -> None:
    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _offer_to_the_kernel(least: int) -> None:
    if least:
        score = _on_file("/proc/self/oom_score_adj", os.O_RDONLY, lambda descriptor: int(os.read(descriptor, 16)))
        if score < least:
            _on_file("/proc/self/oom_score_adj", os.O_WRONLY, lambda descriptor: os.write(descriptor, b"%d" % least))


def _on_file(path: str, flags: int, deed: "Callable[[int], int]") -> int:
    """Avoid Python's file objects, whose codecs every process would import again."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        return deed(descriptor)
    finally:
        os.close(descriptor)


def _leave_bounding_set(but: "Collection[int]") -> None:
    """Remove capabilities that programs started later could gain; needed, and possible, only with privileges."""
    if os.geteuid() == 0:
        for capability in range(_MOST_CAPABILITIES):
            try:
                if capability not in but and prctl(_PR_CAPBSET_READ, capability):
                    prctl(_PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno == errno.EINVAL:  # past the last capability
                    return
                raise


def _become(uid: int, gid: int, keeps_privileges: bool) -> None:
    if (os.getresuid(), os.getresgid(), os.getgroups()) == ((uid,) * 3, (gid,) * 3, []):
        return  # done by an earlier program of this process
    prctl(_PR_SET_KEEPCAPS, int(keeps_privileges))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _drop_capabilities(but: "Collection[int]") -> None:
    """Drop all but these; the next program of this process keeps these too."""
    machine = MACHINES.get(MACHINE)
    if machine is None:
        raise OSError(errno.ENOSYS, f"not supported on machines of type {MACHINE}")
    try:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError:
        pass  # a kernel without ambient capabilities
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    kept = sum(1 << capability for capability in but)
    sets = struct.pack("=6I", kept, kept, kept, 0, 0, 0)  # effective, permitted, inheritable; then those from 32 on
    syscall(
        machine.capset, ctypes.create_string_buffer(header, len(header)), ctypes.create_string_buffer(sets, len(sets))
    )
    for capability in but:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def _stay_with_parent(asked: int, parent: int) -> None:
    """Request the parent-death signal again, which a change of user cancels; the parent may have died meanwhile."""
    if not asked:
        raise OSError(errno.ENOTSUP, "no parent-death signal was set before")
    prctl(_PR_SET_PDEATHSIG, asked)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _set_environment(confinement: Confinement) -> None:
    if confinement.scrubbed:
        for name in set(os.environ) - set(confinement.variables):
            del os.environ[name]
    for name, value in confinement.variables.items():
        if value is not None:
            os.environ[name] = value
        elif name in os.environ:
            del os.environ[name]


def _restrict_files(known: int, confinement: Confinement) -> None:
    if not known:
        raise OSError(
            errno.ENOSYS, "the kernel has no Landlock (Linux 5.13), or something around the server forbids it"
        )
    landlock.restrict(known, confinement.paths, confinement.network)
    if confinement.canary:
        try:
            os.close(os.open(confinement.canary, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.EACCES:
                return
            raise OSError(error.errno, f"the check failed: {error.strerror}: {confinement.canary}") from error
        raise OSError(errno.EPERM, f"{confinement.canary} can be opened although it must not be")


def _check_files(report: "Dict[str, str]") -> None:
    if report["files"]:
        raise OSError(errno.EPERM, report["files"])


def _check_scopes(known: int, report: "Dict[str, str]") -> None:
    _check_files(report)
    if known < landlock.SCOPES:
        raise OSError(errno.ENOSYS, f"the kernel has Landlock version {known}; version 6 (Linux 6.12) is required")
