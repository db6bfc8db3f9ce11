"""Runs a program confined, and kills everything it started when it ends or its time is up.

It runs scripts of an environment whose outcome the host needs. Their processes may leave the session and outlive their
parents. So this process, which is the host's own Python and runs none of their code, stays the ancestor of all: orphans
become its children, and it ends when it has none.

The confinement arrives on standard input; its variables are the program's whole environment, and the program's standard
input is empty. After the program's output this process writes a NUL and the program's end, see
:class:`pybackend_wire.confinement.Ending`, as JSON.
"""

import json
import os
import signal
import sys
import time
from typing import Dict, List, Optional, Set

from pybackend_stub.process import die_with_host
from pybackend_stub.sandbox.confine import ConfinementError, confine
from pybackend_stub.sandbox.kernel import prctl
from pybackend_wire.confinement import Confinement, Ending

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_AWAITED = {signal.SIGCHLD, signal.SIGTERM}
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_LOOK_EVERY_S = 0.05


def main(arguments: "List[str]") -> None:
    """Run ``<host pid> <seconds> <program> <argument>...``."""
    host_pid, limit_s = int(arguments[0]), float(arguments[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # If the host is killed, there is still work to do before this process ends.
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != host_pid:
        os._exit(1)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    confinement = Confinement.from_json(sys.stdin.buffer.read())
    keeper = os.getpid()
    program = os.fork()
    if program == 0:
        _become(arguments[2:], confinement, keeper)
    status = _wait_for(program, time.monotonic() + limit_s)
    left = _end_all() - {program}
    ending = Ending(status, len(left))
    try:
        os.write(sys.stdout.fileno(), b"\0" + json.dumps(ending).encode())
    except OSError:
        pass  # the reader is gone
    os._exit(0)


def _become(command: "List[str]", confinement: Confinement, keeper: int) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        die_with_host(keeper)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
        confine(confinement)
        os.execve(command[0], command, os.environ)  # noqa: S606  the purpose of this file
    except (ConfinementError, OSError) as error:
        sys.stderr.write(f"{command[0]} cannot be started in a sandbox: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


def _wait_for(program: int, deadline_s: float) -> "Optional[int]":
    """Return the program's exit status, negative for a signal; None if time is up or this process must end."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == program:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if pid:
            continue
        left_s = deadline_s - time.monotonic()
        came = signal.sigtimedwait(_AWAITED, left_s) if left_s > 0 else None
        if came is None or came.si_signo == signal.SIGTERM:
            return None


def _end_all() -> "Set[int]":
    """Kill all descendants; returns their process ids."""
    killed: Set[int] = set()
    while True:
        for pid in _descendants():
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except OSError:
                pass  # it is gone already
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return killed
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_EVERY_S)


def _descendants() -> "List[int]":
    """List all running descendants, not only children: the others could go on starting processes."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue  # it is gone already
            if state not in {b"Z", b"X"}:
                children.setdefault(int(parent), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:
        found += children.get(pid, [])
    return found
