"""Engines in this process whose event loop runs only while a test asks it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pybackend.engine import InferenceEngine
from tests.support.engine import engine_on

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def running_engine(repository: Path, **options: Any) -> Iterator[tuple[InferenceEngine, Run]]:
    """An engine with the models of a repository, and a function that runs a coroutine on its loop."""
    with asyncio.Runner() as runner:
        context = engine_on(repository, **options)
        engine = runner.run(context.__aenter__())
        try:
            yield engine, runner.run
        finally:
            runner.run(context.__aexit__(None, None, None))
