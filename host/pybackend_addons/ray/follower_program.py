"""Becomes another program, which the kernel kills with the process that started it.

A server that ended in order would refuse requests until the entrance notices. Connections that break are noticed at
once.

Arguments: the pid of that process, and the command.
"""

import ctypes
import os
import signal
import sys

_SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    if os.getppid() == int(parent):  # else it died before the request for a signal
        os.execv(command[0], command)  # noqa: S606  the command is the actor's
