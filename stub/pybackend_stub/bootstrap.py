"""From process start to the first word to the host: what has to hold before any code of a model runs.

Started as ``<python> -I -B <bundle> <socket> <nudges> <host pid> <mark> <confinement>``, or forked by a zygote. Socket,
counter of nudges and confinement are inherited descriptors, the last one -1 where nothing confines the process. Needs only the
standard library; numpy is imported where an import error can still be told to the host.
"""

import os
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional

from pybackend_stub.process import bear_mark, die_with_host
from pybackend_wire.library_path import forget_library_path
from pybackend_wire.zygote import ARGUMENT

_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_held = threading.local()


def main(arguments: "List[str]") -> int:
    """Run a stub, or a zygote until it is asked for one; returns the exit status."""
    forget_library_path()
    if arguments[0] == ARGUMENT:
        from pybackend_stub import zygote

        birth = zygote.main(arguments[1:])
        return 0 if birth is None else be_stub(*birth)
    descriptor, nudges, host_pid, mark, confinement = map(int, arguments)
    die_with_host(host_pid)
    bear_mark(mark)
    os.set_inheritable(nudges, False)
    text = b""
    if confinement >= 0:
        with open(confinement, "rb") as file:
            text = file.read()
    return be_stub(descriptor, nudges, text)


def be_stub(
    descriptor: int, nudges: int, confinement: bytes, on_confined: "Optional[Callable[[], None]]" = None
) -> int:
    """Run the stub in this process, which dies with the host already; returns the exit status.

    Args:
        descriptor: its socket.
        nudges: the counter by which the host asks to be heard at once.
        confinement: as JSON; empty if nothing confines it.
        on_confined: called once threads may be started.
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
    if on_confined is not None:
        on_confined()
    try:
        from pybackend_stub.loop import StubLoop
    except ImportError as error:
        channel.refuse(
            f"the model's Python ({sys.executable}) cannot run the stub: {error}. Every environment needs numpy >= 1.19"
        )
        return 1
    return StubLoop(channel, nudges, confined).run()


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
