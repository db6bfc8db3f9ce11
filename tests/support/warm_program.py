"""Imports the server once, then forks a process for each that is asked for: ``pybackend`` as it is after its imports.

Imports are most of what a server's start costs. This program is run by ``warm_start``; see there.
"""

import atexit
import gc
import json
import os
import signal
import socket
import sys
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"
_MODULES = ("pybackend.cli.commands", "pybackend.cli.command_line", "pybackend.server", "uvloop")
_LARGEST_REQUEST_BYTES = 1 << 20

_ended: list[int] = []
"""In a fork whose command has ended, the exit status."""


def main() -> None:
    """Fork a process for each request; when the requests end, wait until all of these processes have ended."""
    atexit.register(_leave)  # before all others, so it is called after them
    _import()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # control-C in a terminal is for the servers
    signal.signal(signal.SIGCHLD, lambda *_: _reap(os.WNOHANG))
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, _LARGEST_REQUEST_BYTES, 3)
        if not request:
            requests.close()
            return _reap(0)
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.detach()  # closed with all other descriptors
            _watch(interrupt, *descriptors)
            return _run(*json.loads(request))
        for each in descriptors:
            os.close(each)


def _import() -> None:
    """Import what a server imports, without threads of its own: a fork copies none."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    for name in _MODULES:
        import_module(name)
    del os.environ[_THREADS]
    if before is not None:
        os.environ[_THREADS] = before
    gc.freeze()


def _reap(options: int) -> None:
    try:
        while os.waitpid(-1, options)[0]:
            pass
    except ChildProcessError:
        pass


def _watch(interrupt: signal.Handlers, stdout: int, stderr: int, reports: int) -> None:
    """Fork once more, and return in that process. This one reports its number, and later its exit status and CPU
    seconds."""
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, interrupt)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return
    os.close(stdout)
    os.close(stderr)
    os.write(reports, str(pid).encode())
    _, status, usage = os.wait4(pid, 0)
    os.write(reports, f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime:.3f}".encode())
    os._exit(0)


def _run(arguments: list[str], environment: dict[str, str], directory: str, limits: dict[str, float]) -> None:
    from pybackend.cli import main as command

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for constant, value in limits.items():
        place, _, name = constant.rpartition(".")
        module = import_module(place)
        getattr(module, name)  # a constant that is gone has no other value
        setattr(module, name, value)
    sys.argv = ["pybackend", *arguments]
    try:
        status = command()
    except SystemExit as ending:  # such as the parser's
        if not isinstance(ending.code, int):
            raise
        status = ending.code
    _ended.append(status)
    sys.exit(status)


def _leave() -> None:
    """End a fork whose command is over, but do not take the modules apart: that would copy the pages that forks share."""
    for status in _ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
