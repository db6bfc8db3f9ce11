"""Engines in this process whose event loop runs only while a test asks it to."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pybackend.engine.engine import InferenceEngine
from tests.support.engine import engine_on
from tests.support.gates import Gate
from tests.support.streams import DECOUPLED, Received, Stream, function, write_streams

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def running_engine(
    repository: Path, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None, **options: Any
) -> Iterator[tuple[InferenceEngine, Run]]:
    """An engine with the models of a repository, and a function that runs a coroutine on its loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        context = engine_on(repository, **options)
        engine = runner.run(context.__aenter__())
        try:
            yield engine, runner.run
        finally:
            runner.run(context.__aexit__(None, None, None))


class StreamLab:
    """Decoupled models that run code, in an engine whose loop runs while a test asks it to.

    ``streams`` is the ordinary one, ``pair`` has two instances, ``checked`` has its outputs validated.
    """

    def __init__(self, engine: InferenceEngine, run: Run, repository: Path) -> None:
        self.engine = engine
        self.run = run
        self.directory = repository / "streams"

    def stream(
        self,
        code: str,
        *,
        model: str = "streams",
        asynchronous: bool = False,
        keep: bool = False,
        inputs: Mapping[str, np.ndarray] | None = None,
        **members: Any,
    ) -> Stream:
        """Submit a request, from within the loop."""
        arrays = {"CODE": function(code, asynchronous=asynchronous), **(inputs or {})}
        return Stream(self.engine, model, arrays, keep=keep, **members)

    def responses(self, code: str, **options: Any) -> list[Received]:
        async def wait() -> list[Received]:
            return await self.stream(code, **options).rest()

        return self.run(wait())


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    repository = tmp_path_factory.mktemp("streams")
    write_streams(repository, "streams")
    write_streams(repository, "pair", f"{DECOUPLED} instance_group {{ count: 2 kind: KIND_CPU }}")
    write_streams(
        repository, "checked", f'{DECOUPLED} parameters {{ key: "VALIDATE_OUTPUTS" value {{ string_value: "yes" }} }}'
    )
    with running_engine(repository) as (engine, run):
        yield StreamLab(engine, run, repository)


@pytest.fixture
def gate(lab, request):
    """A gate that the model ``streams`` passes where its code says ``gate.here``; it has the test's name."""
    gate = Gate(lab.directory, request.node.originalname)
    gate.here = f'pass_gate(state["directory"], "{request.node.originalname}")'
    return gate
