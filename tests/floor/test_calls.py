"""Models that call models, in the environments of :mod:`tests.floor.environments`: threads, coroutines, streams, forks."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from tests.floor import environments
from tests.support.callers import write_caller, write_targets
from tests.support.engine import engine_on, input_tensor, output_array

DEADLINE_S = 60
THREADS = """
def run(row):
    for number in range(60):
        assert value(call("double", IN=[row, number]).exec()) == [2 * row, 2 * number]
        assert len(list(call("repeat", IN=[number % 4]).exec(decoupled=True))) == number % 4 + 1
    return row
sys.setswitchinterval(1e-6)
try:
    return in_threads(run, *range(6))
finally:
    sys.setswitchinterval(5e-3)
"""
SHARED = """
iterator = call("repeat", IN=[300]).exec(decoupled=True)
def take(_):
    return sum(1 for _ in iter(lambda: next(iterator, None), None))
return sum(in_threads(take, *range(5)))
"""
FORKS = """
import multiprocessing
context = multiprocessing.get_context("fork")
def run(depth, to):
    found = value(call("double", IN=[depth]).exec())
    to.send(found + (forked(depth - 1) if depth else []))
def forked(depth):
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(depth, theirs))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found
return forked(2)
"""
COROUTINES = """
responses = await asyncio.gather(*(call("double", IN=[number]).async_exec() for number in range(300)))
iterators = await asyncio.gather(*(call("repeat", IN=[number]).async_exec(decoupled=True) for number in range(20)))
return [sum(value(response)[0] for response in responses), [len(list(iterator)) for iterator in iterators]]
"""
EXPECTED = {
    "threads": ("caller", THREADS, list(range(6))),
    "shared": ("caller", SHARED, 301),
    "forks": ("caller", FORKS, [4, 2, 0]),
    "coroutines": ("coroutines", COROUTINES, [2 * sum(range(300)), list(range(1, 21))]),
}
"""Model, code and what it gives."""


@pytest.fixture(scope="module", params=environments.rows(), ids=str)
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of a row's environment."""
    try:
        return environments.python_of(request.param)
    except environments.Unavailable as reason:
        pytest.skip(f"{request.param} was not run: {reason}")


async def _use_every_way(repository: Path, python: str) -> dict[str, object]:
    found: dict[str, object] = {}
    async with engine_on(repository, python=python) as engine:
        for name, (model, code, _) in EXPECTED.items():
            text = np.array([textwrap.dedent(code)], object)
            request = InferenceRequest(model, inputs=[input_tensor("CODE", text)])
            async with asyncio.timeout(DEADLINE_S):
                response = await engine.open(model).infer(request)
            found[name] = json.loads(output_array(response, "JSON").item())
            response.release()
    return found


@pytest.mark.timeout(300)
def test_models_call_models(python, tmp_path):
    write_caller(tmp_path)
    write_caller(tmp_path, "coroutines", asynchronous=True)
    write_targets(tmp_path, "double", "repeat")
    found = asyncio.run(_use_every_way(tmp_path, python))
    assert found == {name: expected for name, (_, _, expected) in EXPECTED.items()}
