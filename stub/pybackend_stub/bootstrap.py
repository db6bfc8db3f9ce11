"""From process start to the first word to the host: what has to hold before any code of a model runs.

Started as ``<python> -I -B <bundle> <socket> <nudges> <host pid> <confinement>``; all but the pid are inherited descriptors,
the last one -1 where nothing confines the process. Needs only the standard library; numpy is imported where an import error
can still be told to the host.
"""

import os
import signal
import sys
import threading
from typing import Any, Dict, List

_PR_SET_PDEATHSIG = 1

_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_held = threading.local()


def main(arguments: "List[str]") -> int:
    """Run the stub on the inherited socket; returns the exit status."""
    descriptor, nudges, host_pid, confinement = map(int, arguments)
    die_with_host(host_pid)
    os.set_inheritable(nudges, False)
    text = b""
    if confinement >= 0:
        with open(confinement, "rb") as file:
            text = file.read()
    return be_stub(descriptor, nudges, text)


def be_stub(descriptor: int, nudges: int, confinement: bytes) -> int:
    """Run the stub in this process, which dies with the host already; returns the exit status.

    Args:
        descriptor: its socket.
        nudges: the counter by which the host asks to be heard at once.
        confinement: as JSON; empty if nothing confines it.
    """
    ignore_terminal_signals()
    sys.argv = [""]  # a program without a name, as models have always seen
    from pybackend_stub.channel import HostChannel
    from pybackend_stub.model_output import open_output

    channel = HostChannel(descriptor)
    confined: Dict[str, str] = {}
    if confinement:
        from pybackend_stub.sandbox import ConfinementError, confine
        from pybackend_wire.confinement import Confinement

        try:
            confined = confine(Confinement.from_json(confinement), (descriptor, nudges))
        except ConfinementError as error:
            channel.refuse(str(error))
            return 1
    open_output()
    try:
        from pybackend_stub.loop import StubLoop
    except ImportError as error:
        channel.refuse(
            f"the model's Python ({sys.executable}) cannot run the stub: {error}. Every environment needs numpy >= 1.19"
        )
        return 1
    return StubLoop(channel, nudges, confined).run()


def die_with_host(host_pid: int) -> None:
    """Ask the kernel for SIGKILL when the host dies, even while the model computes or holds the GIL."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != host_pid:  # it died before the request to the kernel was in force
        os._exit(1)


def ignore_terminal_signals() -> None:
    """A Ctrl-C or SIGTERM aimed at the host's group must not end models before the host has drained.

    Handlers that do nothing, rather than SIG_IGN: what a model starts does not inherit them. What it forks would, and
    ``multiprocessing`` ends its workers by SIGTERM: forks get Python's own handling back.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, _do_nothing)
    os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_heed_signals)


def _do_nothing(_signal: int, _frame: Any) -> None:
    pass


def _hold_signals() -> None:
    """Until a fork has handlers of its own: a signal that came before would find ours, and be lost."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _heed_signals() -> None:
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _do_nothing:  # a model may have set its own
            signal.signal(number, handler)
    _release_signals()
