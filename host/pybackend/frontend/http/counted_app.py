"""An ASGI application whose answers are counted by status."""

from __future__ import annotations

from typing import Any

from pybackend.engine.answers import Answers


def counted(app: Any, answers: Answers) -> Any:
    """The application; each answer is counted when it begins."""

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                answers.add(str(int(message["status"])))
            await send(message)

        await app(scope, receive, noting)

    return counting
