"""Packs a list of packages while the server runs, in a separate process that can be stopped."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from pybackend.cores import unpin
from pybackend.environment.unpacking import Cancelled
from pybackend.errors import ModelEnvironmentError

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_MOST_OUTPUT_BYTES = 64 * 1024


def pack_in_process(specification: Path, archive: Path, cancelled: threading.Event) -> None:
    """Run ``pybackend pack`` and wait for it.

    Raises:
        ModelEnvironmentError: it cannot be packed.
        Cancelled: ``cancelled`` was set first.
    """
    command = [sys.executable, "-m", "pybackend", "pack", str(specification), "-o", str(archive)]
    with tempfile.TemporaryFile() as output:
        unpin()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
        )
        try:
            while True:
                try:
                    status = process.wait(_LOOK_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    if cancelled.is_set():
                        raise Cancelled from None
        finally:
            with suppress(ProcessLookupError):  # the process group includes installers it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        said = output.read(_MOST_OUTPUT_BYTES).decode("utf-8", "replace").strip()
    if status:
        reason = said.partition("error: ")[2] or said or f"the command ended with status {status}"
        raise ModelEnvironmentError(f"{specification} cannot be packed: {reason}")
    for line in said.splitlines():
        if line.startswith("warning: "):
            log.warning("%s: %s", specification, line.removeprefix("warning: "))
