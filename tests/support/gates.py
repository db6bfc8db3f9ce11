"""Places at which a model waits until its test lets it go on, so that no test has to guess how long something takes."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.support.repositories import code_part

DEADLINE_S = 60

_Result = TypeVar("_Result")

GATE = code_part("gate")
"""For the top of a model file: ``pass_gate(args["model_repository"], "execute")``."""


class Gate:
    """The test's side of ``pass_gate``; closed at first.

    Args:
        directory: the model's directory, as ``write_model`` returns it.
        name: which of the model's gates.

    Attributes:
        reached_path: the file that grows with each arrival.
        open_path: the file that is there while the gate is open: models may make it as well.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.reached_path = directory / f"{name}.reached"
        self.open_path = directory / f"{name}.open"

    @property
    def arrivals(self) -> int:
        """How often the model came here so far."""
        return self.reached_path.stat().st_size if self.reached_path.exists() else 0

    @property
    def reached_ns(self) -> int:
        """When the model came here last, on the clock of ``time.time_ns``."""
        return self.reached_path.stat().st_mtime_ns

    def wait_reached(self, arrivals: int = 1) -> None:
        """Wait until the model has come here so often."""
        wait_until(
            lambda: self.arrivals >= arrivals,
            lambda: f"the model came to {self.reached_path.name} {self.arrivals} times",
        )

    @contextmanager
    def holding(self, send: Callable[[], _Result], arrivals: int = 1) -> Iterator[Future[_Result]]:
        """A request under way, from when the model has come here with it; at the end the gate opens, whatever happens.

        It is sent from a thread. A client with its own event loop, such as that of gevent, may send nothing while
        the test waits for the model.

        Args:
            send: sends the request, and returns or raises what becomes of it.
            arrivals: how often the model comes here with it.

        Yields:
            What becomes of it.
        """
        expected = self.arrivals + arrivals
        with ThreadPoolExecutor(1) as thread:
            try:
                sent = thread.submit(send)
                wait_until(
                    lambda: self.arrivals >= expected or sent.done(),
                    lambda: f"the model came to {self.reached_path.name} {self.arrivals} times, not {expected}",
                )
                assert self.arrivals >= expected, f"the request ended before {self.reached_path.name}: {sent.result()}"
                yield sent
            finally:
                self.open()

    def open(self) -> None:
        """Let everyone pass, now and later."""
        self.open_path.touch()

    def close(self) -> None:
        """Whoever comes from now on waits."""
        self.open_path.unlink(missing_ok=True)


def wait_until(condition, what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> None:
    """Ask until a condition holds.

    Args:
        condition: called again and again.
        what: what to say when the deadline passes first; a function is asked then.
        deadline_s: how long to ask.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.01)
