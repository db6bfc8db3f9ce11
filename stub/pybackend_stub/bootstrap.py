"""From process start to the first word to the host: what has to hold before any code of a model runs.

Started as ``<python> -I -B <bundle> <socket> <nudges> <host pid>``, the first two being inherited descriptors. Needs only the standard library; numpy is imported
where an import error can still be told to the host.
"""

import os
import signal
import sys
from typing import Any, List

_PR_SET_PDEATHSIG = 1


def main(arguments: "List[str]") -> int:
    """Run the stub on the inherited socket; returns the exit status."""
    descriptor, nudges, host_pid = map(int, arguments)
    die_with_host(host_pid)
    os.set_inheritable(nudges, False)
    ignore_terminal_signals()
    prepare_interpreter()
    from pybackend_stub.channel import HostChannel

    channel = HostChannel(descriptor)
    try:
        from pybackend_stub.loop import StubLoop
    except ImportError as error:
        channel.refuse(
            f"the model's Python ({sys.executable}) cannot run the stub: {error}. Every environment needs numpy >= 1.19"
        )
        return 1
    return StubLoop(channel, nudges).run()


def die_with_host(host_pid: int) -> None:
    """Ask the kernel for SIGKILL when the host dies, even while the model computes or holds the GIL."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != host_pid:  # it died before the request to the kernel was in force
        os._exit(1)


def ignore_terminal_signals() -> None:
    """A Ctrl-C or SIGTERM aimed at the host's group must not end models before the host has drained.

    Handlers that do nothing, rather than SIG_IGN: what a model starts does not inherit them.
    """
    signal.signal(signal.SIGINT, _do_nothing)
    signal.signal(signal.SIGTERM, _do_nothing)


def _do_nothing(_signal: int, _frame: Any) -> None:
    pass


def prepare_interpreter() -> None:
    """Show models the interpreter they expect: an empty program name, and output that appears when it is printed."""
    sys.argv = [""]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
