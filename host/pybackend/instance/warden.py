"""A process that outlives a server which was killed, for as long as it takes to end what its models have left behind.

The stubs themselves die with the host, by the kernel's promise; what they have started has no such promise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).with_name("warden_program.py")


class Warden:
    """The warden of this process.

    Args:
        lowest: of the marks of this process's stubs.
        highest: of them.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, lowest: int, highest: int) -> None:
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_PROGRAM), *map(str, (reading, lowest, highest))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[reading],
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    @property
    def is_alive(self) -> bool:
        """False if somebody has ended it."""
        return self._process.poll() is None

    def close(self) -> None:
        """It is not needed: this process ends in order."""
        self._process.kill()
        self._process.wait()
        os.close(self._writing)
