"""Progress of a pack: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

Advance = Callable[[float, float], None]
"""Called with the amount done and the total."""


class Progress:
    """Shows nothing, and measures the duration of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, title: str) -> Iterator[Advance]:
        """One step; yields a callback for progress reports, which any thread may call."""
        started = time.perf_counter()
        try:
            yield self._ignore
        finally:
            self.seconds[title] = time.perf_counter() - started

    def _ignore(self, _done: float, _total: float) -> None:
        pass


class TerminalProgress(Progress):
    """One line per step, with a bar while the total is known."""

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
