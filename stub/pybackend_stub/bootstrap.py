"""Process start, up to the first message to the host: preparations that must precede any code of a model.

Started as ``<python> -I -B <bundle> <socket> <nudges> <host pid> <mark> <confinement>``, or forked by a zygote. The
socket, the pipe for nudges and the confinement are inherited descriptors; the last is a negative number if there is
nothing left to confine. Needs only the standard library: numpy is imported at a point where an import error can be
reported to the host.
"""

import os
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional

from pybackend_stub.process import bear_mark, die_with_host, show_memory
from pybackend_wire.confinement import CONFINED, CONFINED_AND_HIDES, NOT_CONFINED, forget_library_path
from pybackend_wire.zygote import ARGUMENT

_TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_held = threading.local()


def main(arguments: "List[str]") -> int:
    """Run a stub, or run a zygote until it forks a stub; returns the exit status."""
    forget_library_path()
    if arguments[0] == ARGUMENT:
        from pybackend_stub import zygote

        birth = zygote.main(arguments[1:])
        return 0 if birth is None else be_stub(*birth)
    descriptor, nudges, host_pid, mark = map(int, arguments[:4])
    die_with_host(host_pid)
    bear_mark(mark)
    os.set_inheritable(nudges, False)
    confinement = arguments[4]
    if confinement == CONFINED_AND_HIDES:
        show_memory(False)
    if confinement in {CONFINED, CONFINED_AND_HIDES}:
        return be_stub(descriptor, nudges, b"", is_confined=True)
    text = b""
    if confinement != NOT_CONFINED:
        with open(int(confinement), "rb") as file:
            text = file.read()
    return be_stub(descriptor, nudges, text)


def be_stub(
    descriptor: int,
    nudges: int,
    confinement: bytes,
    on_confined: "Optional[Callable[[], None]]" = None,
    *,
    is_confined: bool = False,
) -> int:
    """Run the stub in this process, which already dies with the host; returns the exit status.

    Args:
        nudges: the end of a pipe that the host writes to when it needs an answer now.
        confinement: as JSON; empty for a process that is not confined.
        on_confined: called as soon as threads may be started.
        is_confined: whether the process was confined before this Python started, and the host knows the report.
    """
    ignore_terminal_signals()
    sys.argv = [""]  # a program without a name, as Triton's models see it
    from pybackend_stub.channel import HostChannel
    from pybackend_stub.model_output import open_output, show_crashes

    channel = HostChannel(descriptor)
    confined: Optional[Dict[str, str]] = {} if is_confined else None
    if confinement:
        from pybackend_stub.sandbox import ConfinementError, confine
        from pybackend_wire.confinement import Confinement

        try:
            confined = confine(Confinement.from_json(confinement), (descriptor, nudges))
        except ConfinementError as error:
            channel.refuse(str(error))
            return 1
    open_output()
    show_crashes()
    if on_confined is not None:
        on_confined()
    try:
        from pybackend_stub.loop import StubLoop
    except ImportError as error:
        channel.refuse(
            f"the model's Python ({sys.executable}) cannot run the stub: {error}. Every environment needs numpy >= 1.19"
        )
        return 1

    def open_group() -> "Callable[[int, int], None]":
        from pybackend_stub.group import Group

        return Group(confined).start

    return StubLoop(channel, nudges, confined, open_group).run()


def ignore_terminal_signals() -> None:
    """Ignore Ctrl-C and SIGTERM aimed at the host's group: models must not end before the host has drained.

    The handlers do nothing but are not SIG_IGN, which programs started by a model would inherit. Forks would inherit
    them, and ``multiprocessing`` ends its workers by SIGTERM, so forks get Python's default handling back.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, _do_nothing)
    os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_heed_signals)


def _do_nothing(_signal: int, _frame: Any) -> None:
    pass


def _hold_signals() -> None:
    """Block the signals until a fork has its own handlers: a signal that came earlier would find ours and be lost."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _heed_signals() -> None:
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _do_nothing:  # a model may have set its own
            signal.signal(number, handler)
    _release_signals()
