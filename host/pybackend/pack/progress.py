"""How far a pack is: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

Advance = Callable[[float, float], None]
"""Is told how much of how much is done."""


class Progress:
    """Says nothing, and measures how long each step takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[Advance]:
        """One step; yields what it may call as it goes on, from any thread."""
        started = time.perf_counter()
        try:
            yield self._ignore
        finally:
            self.seconds[title] = time.perf_counter() - started

    def _ignore(self, _done: float, _total: float) -> None:
        pass


class TerminalProgress(Progress):
    """A line for each step, with a bar while it is known how far it is.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        from rich.console import Console

        self._console = Console(file=stream)

    @contextmanager
    def step(self, title: str) -> Iterator[Advance]:
        from rich import progress as bars

        columns = (
            bars.SpinnerColumn(finished_text="✓"),
            bars.TextColumn("{task.description:<28}", markup=False),
            bars.BarColumn(),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
        )
        with super().step(title), bars.Progress(*columns, console=self._console) as display:
            task = display.add_task(title, total=None)

            def advance(done: float, total: float) -> None:
                display.update(task, completed=done, total=total)

            yield advance
            display.update(task, completed=1, total=1)
