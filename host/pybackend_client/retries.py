"""When a request is sent again: deadlines, pauses, and a budget that keeps many clients from overwhelming a server in need."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from pybackend_client.errors import ClientError, ConnectionLostError, DeadlineError, UnavailableError, UnreachableError


@dataclass(frozen=True)
class Retries:
    """The rules for requests that are sent again.

    A request is sent again if the server has surely not executed it: there was no connection, or it said that it is
    unavailable. A pause is a random part of a time that doubles. Each retry takes one from the budget, which all
    requests of a client share; each request gives a part of one back.
    """

    attempts: int = 3
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    budget: float = 10.0
    refill: float = 0.1


class Budget:
    """The retries that a client may still make; used by several threads."""

    def __init__(self, rules: Retries) -> None:
        self.rules = rules
        self._left = rules.budget
        self._lock = threading.Lock()

    def refill(self) -> None:
        """A request was made."""
        with self._lock:
            self._left = min(self.rules.budget, self._left + self.rules.refill)

    def take(self) -> bool:
        """Use one retry; False if there is none."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Attempts:
    """The attempts at one request."""

    def __init__(self, budget: Budget, timeout_s: float, *, repeatable: bool) -> None:
        self._budget = budget
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s
        self._count = 1
        self._again = (UnreachableError, *((UnavailableError, ConnectionLostError) if repeatable else ()))
        budget.refill()

    def left_s(self) -> float:
        """The time for the next attempt; raises DeadlineError if there is none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"no answer within {self._timeout_s:g} s")
        return left

    def pause_after(self, error: ClientError) -> float:
        """The pause before the next attempt; raises the error if there should be none."""
        rules = self._budget.rules
        if not isinstance(error, self._again) or self._count >= rules.attempts:
            raise error
        longest = min(rules.longest_pause_s, rules.first_pause_s * 2 ** (self._count - 1))
        pause = random.uniform(0, longest)  # noqa: S311  it keeps clients apart, and protects nothing
        if time.monotonic() + pause >= self._end or not self._budget.take():
            raise error
        self._count += 1
        return pause
