"""A process that outlives a killed server just long enough to kill its models' leftovers.

The kernel kills the stubs themselves with the host, but not the processes that they started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pybackend.cores import unpin

_PROGRAM = Path(__file__).with_name("warden_program.py")


class Warden:
    """The warden of this process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, lowest: int, highest: int) -> None:
        reading, self._writing = os.pipe()
        try:
            unpin()
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
        """False if something has killed it."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it: this process is shutting down in order."""
        self._process.kill()
        self._process.wait()
        os.close(self._writing)
