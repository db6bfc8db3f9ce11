"""Asking a model's ``is_ready``: one question at a time, which all who want to know share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

READINESS_LIMIT_S = 5.0
"""How long one who asks waits; the model may take longer, and who asks next waits for the same answer."""


class ReadinessProbe:
    """The current question, if there is one.

    Attributes:
        limit_s: how long one who asks waits; None for as long as it takes.
    """

    def __init__(self) -> None:
        self.limit_s: float | None = READINESS_LIMIT_S
        self._answer: asyncio.Future[str] | None = None

    async def ask(self, send: Callable[[], None]) -> str:
        """Why the model is not ready; empty if it is.

        Args:
            send: puts the question, unless one was put already.
        """
        joins = self._answer is not None
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            send()
        try:
            async with asyncio.timeout(self.limit_s):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            which = "in-flight is_ready() response" if joins else "user-defined is_ready() response"
            return f"Timed out waiting for {which}"

    def answer(self, reason: str) -> bool:
        """The model has answered, or its stub is gone; False without a question."""
        answer, self._answer = self._answer, None
        if answer is None:
            return False
        answer.set_result(reason)
        return True
