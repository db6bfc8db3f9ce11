"""Tells how far downloads are: lines in the log, and one line that changes on a terminal."""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import IO

log = logging.getLogger(__name__)

LINE_S, _DRAW_S = 10.0, 0.2
_CLEAR = "\x1b[K\r"


class Progress:
    """All downloads of a server.

    Args:
        terminal: shows the sum of them; None if there is none.
    """

    def __init__(self, terminal: IO[str] | None) -> None:
        self._terminal = terminal
        self._active: list[Transfer] = []
        self._drawn_s = 0.0

    def begin(self, name: str, place: str, file_count: int, total_bytes: int) -> Transfer:
        """Note a download."""
        transfer = Transfer(self, name, total_bytes)
        self._active.append(transfer)
        files = "1 file" if file_count == 1 else f"{file_count} files"
        log.info("downloading model '%s' from %s: %s, %s", name, place, files, size(total_bytes))
        return transfer

    def end(self, transfer: Transfer) -> None:
        """Forget a download."""
        self._active.remove(transfer)
        self.draw(at_once=True)

    def draw(self, *, at_once: bool = False) -> None:
        """Show the sum on the terminal, unless that was done a moment ago.

        The cursor stays at the start of the line, so that the next line of the log replaces it.
        """
        if self._terminal is None or not (at_once or monotonic() - self._drawn_s > _DRAW_S):
            return
        self._drawn_s = monotonic()
        total = sum(transfer.total_bytes for transfer in self._active)
        done = sum(transfer.done_bytes for transfer in self._active)
        count = len(self._active)
        text = f"{count} {'download' if count == 1 else 'downloads'}: {share(done, total)}" if count else ""
        self._terminal.write(f"{text}{_CLEAR}")
        self._terminal.flush()


class Transfer:
    """The download of one model."""

    def __init__(self, progress: Progress, name: str, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._progress = progress
        self._name = name
        self._began_s = self._said_s = monotonic()

    def add(self, nbytes: int) -> None:
        """Count bytes that have arrived."""
        self.done_bytes += nbytes
        if monotonic() - self._said_s > LINE_S:
            self._said_s = monotonic()
            log.info("downloading model '%s': %s", self._name, share(self.done_bytes, self.total_bytes))
        self._progress.draw()

    def end(self, *, complete: bool) -> None:
        """The download has ended, one way or the other."""
        self._progress.end(self)
        if complete:
            took_s = monotonic() - self._began_s
            log.info("downloaded model '%s': %s in %.2f s", self._name, size(self.total_bytes), took_s)


def terminal() -> IO[str] | None:
    """Standard error, if somebody looks at it."""
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


def share(done_bytes: int, total_bytes: int) -> str:
    """A part of a whole: ``120.0 MB of 340.0 MB (35 %)``."""
    percent = 100 * done_bytes // total_bytes if total_bytes else 100
    return f"{size(done_bytes)} of {size(total_bytes)} ({percent} %)"


def size(nbytes: float) -> str:
    """A size with a unit that fits."""
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
