"""The command that runs an application: signals end it, whichever of its threads gets them."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading
from pybackend_addons.ray.command import ending_signals


def send():
    looks = 0
    while looks < 300:  # until the main thread waits
        with open(f"/proc/self/task/{os.getpid()}/stat") as file:
            looks = looks + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
    for name in sys.argv[1:]:
        signal.pthread_kill(threading.get_ident(), signal.Signals[name])


wait = ending_signals()
threading.Thread(target=send).start()
wait()
print("ends")
"""


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGINT", "SIGTERM"]])
def test_a_signal_that_another_thread_gets_ends_the_command(signals):
    """Of two at once, the kernel may give both to a thread of Ray's."""
    command = [sys.executable, "-c", PROGRAM, *signals]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
